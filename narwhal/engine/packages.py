"""Which packages another Python has."""

import json
import os
import subprocess
from collections.abc import Sequence

_DEADLINE_S = 60.0
_VERSIONS = """
import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: found[name] = None
print(json.dumps(found))
"""


def package_versions(python: str, names: Sequence[str]) -> dict[str, str | None]:
    """Versions of installed packages as a Python sees them; None for one that is not there.

    Raises `OSError` and `ValueError` when that Python does not say.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    argv = [python, "-c", _VERSIONS, *names]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    if done.returncode:
        raise ValueError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    found: dict[str, str | None] = json.loads(done.stdout)
    return found
