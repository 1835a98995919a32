"""What the example fleets render to, beside them: `python -m tests.deploy.goldens` writes it anew."""

import re
import shutil
from pathlib import Path

from narwhal.deploy import open_run
from narwhal.deploy.content import render_files, static_files
from narwhal.documents import data_path

EXAMPLES = ("laptop", "one-box", "two-racks")


def folder_of(name: str) -> Path:
    return data_path("inventories", name) / "rendered"


def rendered(name: str) -> dict[str, bytes]:
    """All but what is copied as it is shipped."""
    wanted = open_run(data_path("inventories", name, "fleet.yaml")).wanted
    files = {path: data for path, data in render_files(wanted).items() if path not in static_files()}
    return files | {
        "group_vars/all.yml": _DIGEST.sub(b"narwhal_fleet_digest: of-this-version", files["group_vars/all.yml"])
    }


_DIGEST = re.compile(rb"narwhal_fleet_digest: .*")
"""It is over all keys, defaults included, so it changes with every key that a version brings."""


if __name__ == "__main__":
    for example in EXAMPLES:
        shutil.rmtree(folder_of(example), ignore_errors=True)
        for path, data in rendered(example).items():
            place = folder_of(example) / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
