"""Writing files that others read: whole or not at all."""

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Write `content` to `path` so that a reader sees the old file or the new one, never a part.

    The data is on disk before the rename; `mode` is set before the file has its name.
    """
    data = content.encode() if isinstance(content, str) else content
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        os.fchmod(fd, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
