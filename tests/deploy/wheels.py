"""Small wheels, made by hand."""

import zipfile
from collections.abc import Sequence
from pathlib import Path


def make_wheel(
    folder: Path, name: str, version: str = "1.0", requires: Sequence[str] = (), tag: str = "py3-none-any"
) -> Path:
    path = folder / f"{name}-{version}-{tag}.whl"
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/data/other-1.0.dist-info/METADATA", "Name: other\nRequires-Dist: nothing-of-ours\n")
        archive.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(lines) + "\n")
        archive.writestr(
            f"{name}-{version}.dist-info/WHEEL",
            f"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: {tag}\n",
        )
        archive.writestr(f"{name}-{version}.dist-info/RECORD", "")
    return path
