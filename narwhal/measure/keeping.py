"""Evidence on disk: a folder for each measurement, there whole or not at all, and found again when it still holds."""

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from pydantic import ValidationError

from narwhal.documents import Document, write_atomically
from narwhal.measure.errors import EvidenceError
from narwhal.measure.evidence import DOCUMENT, BenchEvidence, BenchFile, BenchInputs

PARTIAL = ".partial"
"""End of the name of a folder that is being written."""


def utc_now() -> str:
    """Now, to the millisecond: `2026-11-30T15:54:23.120Z`."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def folder_name(moment: str) -> str:
    """A moment as the name of a folder, which sorts by time: `20261130T155423.120Z`."""
    return moment.replace("-", "").replace(":", "")


def digest_of(value: object) -> str:
    """SHA-256 of plain data, or of bytes."""
    data = value if isinstance(value, bytes) else msgspec.json.encode(value, order="deterministic")
    return "sha256:" + hashlib.sha256(data).hexdigest()


@contextmanager
def new_folder(parent: Path, started_at: str) -> Iterator[tuple[Path, Path]]:
    """A folder to write evidence into, and the name that it gets once all of it is there; else nothing stays."""
    final = parent / folder_name(started_at)
    partial = parent / f".{final.name}.{os.getpid()}{PARTIAL}"
    partial.mkdir(parents=True, mode=0o700)
    try:
        yield partial, final
        os.replace(partial, final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def clear_partial(out: Path) -> list[Path]:
    """Remove what killed runs left half written in the folders of `out`, and say what it was."""
    left = [path for path in sorted(out.glob(f"*/.*{PARTIAL}")) if not _is_written(path)]
    for path in left:
        shutil.rmtree(path)
    return left


def _is_written(partial: Path) -> bool:
    """Whether the process that a half written folder names is at work: this one, or another run into the same place."""
    pid = partial.name.removesuffix(PARTIAL).rpartition(".")[2]
    return pid.isdecimal() and Path("/proc", pid).exists()


def write_rows(path: Path, rows: Iterable[object]) -> BenchFile:
    """Write rows as JSON Lines; they are on disk when this returns."""
    digest, count = hashlib.sha256(), 0
    encode = msgspec.json.Encoder().encode
    with path.open("wb") as file:
        for row in rows:
            line = encode(row) + b"\n"
            digest.update(line)
            file.write(line)
            count += 1
        file.flush()
        os.fsync(file.fileno())
    return BenchFile(sha256="sha256:" + digest.hexdigest(), rows=count)


def write_document(path: Path, document: Document) -> None:
    """Write a document of evidence."""
    write_atomically(path, document.model_dump_json(by_alias=True, indent=2) + "\n")


def load_evidence(folder: Path) -> BenchEvidence:
    """The evidence in a folder. Raises `EvidenceError` when not all of it is there as it was written."""
    try:
        evidence = BenchEvidence.model_validate_json((folder / DOCUMENT).read_bytes())
    except OSError as error:
        raise EvidenceError(f"{DOCUMENT} cannot be read: {error.strerror or error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise EvidenceError(f"{DOCUMENT} is no BenchEvidence: {place + ': ' if place else ''}{first['msg']}") from None
    for name, file in evidence.files.items():
        try:
            digest = digest_of((folder / name).read_bytes())
        except OSError as error:
            raise EvidenceError(f"{name} cannot be read: {error.strerror or error}") from None
        if digest != file.sha256:
            raise EvidenceError(f"{name} is not what was written: its SHA-256 differs from the one in {DOCUMENT}")
    return evidence


def read_evidence(folder: Path) -> BenchEvidence | None:
    """The evidence in a folder, when all of it is there as it was written; else None."""
    try:
        return load_evidence(folder)
    except EvidenceError:
        return None


def still_holds(parent: Path, inputs: BenchInputs) -> tuple[Path, BenchEvidence] | None:
    """The newest evidence of a point that counts and was measured with these inputs; None: there is none."""
    for folder in sorted(parent.glob("[0-9]*"), reverse=True):
        evidence = read_evidence(folder)
        if evidence is not None and evidence.inputs == inputs and evidence.verdict.valid:
            return folder, evidence
    return None
