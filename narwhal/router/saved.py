"""What a router keeps on disk, so that it can go on after a crash (`recovery.state_path`).

The file is replaced as a whole, and the one before it stays beside it (`NAME.1`): whatever a crash left behind, one of
the two can be read. What is in it, and in what form, is what a standby is sent: the role map, and what control knows
without its requests.
"""

import hashlib
import logging
import os
from pathlib import Path
from typing import Literal

import msgspec

from narwhal.control.succession import RoleMap
from narwhal.documents import write_atomically

log = logging.getLogger("narwhal.router")


class Knowledge(msgspec.Struct, frozen=True):
    """What a router knew at one moment."""

    version: str
    """Of the router: `pieces` are read by the same version only, the map by any."""
    boot_id: str
    """The kernel's id of the boot in which it was written: the monotonic clock begins anew with the next."""
    written_at_s: float
    """When, as Unix time in seconds."""
    now_t: float
    """The same on the clock that dates what is in it."""
    tokens_per_byte: float
    """Tokens of a prompt for each byte of JSON."""
    map: RoleMap
    pieces: dict[str, msgspec.Raw]
    """As in the follow stream."""


class SavedState(msgspec.Struct, frozen=True):
    """A file of it."""

    digest: str
    """`sha256:` and the digest of `state`, byte by byte as it stands."""
    state: msgspec.Raw
    apiVersion: Literal["narwhal/v1"] = "narwhal/v1"  # noqa: N815
    kind: Literal["SavedState"] = "SavedState"


class UnreadableError(Exception):
    """A file that is no whole state."""


def write(path: Path, knowledge: Knowledge) -> None:
    """Replace the file, and keep the one that was there. Raises `OSError`, and then neither is lost."""
    state = msgspec.json.encode(knowledge)
    document = msgspec.json.encode(SavedState(_digest(state), msgspec.Raw(state)))
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f".{path.name}.new")
    write_atomically(new, document, mode=0o600)  # it is on disk before anything is moved
    _keep(path)
    os.replace(new, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # the names too are on disk now
    finally:
        os.close(folder)


def _keep(path: Path) -> None:
    """Give the file its second name as the one before, so that there is no moment without a file of the first."""
    old = path.with_name(f".{path.name}.old")
    old.unlink(missing_ok=True)
    try:
        os.link(path, old)
    except FileNotFoundError:
        return
    except OSError:  # a file system without hard links: then there is such a moment, and the one before is read
        os.replace(path, previous(path))
        return
    os.replace(old, previous(path))


def previous(path: Path) -> Path:
    """Where the file before the present one is."""
    return path.with_name(f"{path.name}.1")


def read(path: Path) -> Knowledge | None:
    """The latest state that can be read; what cannot is said in the log. None: there is none."""
    for candidate in (path, previous(path)):
        try:
            knowledge = _read(candidate)
        except FileNotFoundError:
            continue
        except (OSError, UnreadableError) as error:
            log.error("the state in %s cannot be used: %s", candidate, getattr(error, "strerror", None) or error)
        else:
            if candidate != path:
                log.warning("the state before it, in %s, is used", candidate)
            return knowledge
    return None


def _read(path: Path) -> Knowledge:
    data = path.read_bytes()
    try:
        document = msgspec.json.decode(data, type=SavedState)
        if document.digest != _digest(bytes(document.state)):
            raise UnreadableError("its digest is another: it is torn")
        knowledge = msgspec.json.decode(document.state, type=Knowledge)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableError(f"it is cut off, or no state of a router: {error}") from error
    # a copy: what was decoded would keep the whole file in memory
    pieces = {name: msgspec.Raw(bytes(piece)) for name, piece in knowledge.pieces.items()}
    return msgspec.structs.replace(knowledge, pieces=pieces)


def shift_s(knowledge: Knowledge, boot_id: str, now_t: float, unix_s: float) -> float:
    """What the clock of a router that resumes shows beyond the one that dates a state.

    It is the same clock within one boot. After another, the calendar says how long ago it was written.
    """
    if knowledge.boot_id == boot_id:
        return 0.0
    return now_t - knowledge.now_t - max(unix_s - knowledge.written_at_s, 0.0)


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
