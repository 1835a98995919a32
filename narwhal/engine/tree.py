"""One digest for a directory: which model lies there."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

_LEFT_OUT = (".cache", ".git", "__pycache__")
"""Folders of tools, the hub's cache among them, that say nothing of the model."""


def tree_digest(folder: Path) -> str:
    """SHA-256, as `sha256:…`, over path, size and SHA-256 of every file below a folder, in order of the paths.

    READMEs and caches are left out: two copies of one model have one digest. Links count as what they point to.
    Raises `OSError` for what cannot be read.
    """
    total = hashlib.sha256()
    for path in sorted(_files(folder), key=lambda path: path.relative_to(folder).as_posix()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = os.fstat(file.fileno()).st_size
        total.update(f"{path.relative_to(folder).as_posix()}\0{size}\0{digest}\n".encode())
    return f"sha256:{total.hexdigest()}"


def _files(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise NotADirectoryError(20, "not a directory", str(folder))
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        for name in names:
            if not name.upper().startswith("README"):
                yield Path(place, name)
