"""Making a diagnostic bundle: every source within its limits, redacted, in one archive that only its owner reads."""

import gzip
import hashlib
import io
import json
import os
import tarfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import narwhal
from narwhal.diagnose.client import RefusedError, UnreachableError
from narwhal.diagnose.gather import LIMIT_BYTES, LIMIT_S, Found, NothingError, Source
from narwhal.diagnose.logtext import told_by_engine, told_by_us
from narwhal.diagnose.manifest import BundledSource, BundleLimits, DiagnosticBundle
from narwhal.diagnose.names import names_in
from narwhal.diagnose.redact import Redactor

AT_A_TIME = 8
"""Sources that are collected beside each other."""
ROOT = "narwhal-bundle"
"""The one folder of the archive."""
Kept = Literal["names", "addresses", "messages"]


def make_bundle(
    wanted: Sequence[Source], redactor: Redactor, file: Path, since_s: float, *, limit_s: float = LIMIT_S
) -> DiagnosticBundle:
    """Collect and write; returns the manifest. Raises `OSError`, and leaves no archive then."""
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        collected = list(pool.map(lambda source: _within(source, limit_s), wanted))
    for found in collected:
        if isinstance(found, Found) and not isinstance(found.content, str):
            redactor.learn(names_in(found.content))
    files: dict[str, bytes] = {}
    told = [_bundled(source, found, redactor, files) for source, found in zip(wanted, collected, strict=True)]
    asked = redactor.asked
    kept: list[Kept] = [name for name in ("names", "addresses", "messages") if getattr(asked, name)]
    manifest = DiagnosticBundle(
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        version=narwhal.__version__,
        since_s=since_s,
        kept=kept,
        limits=BundleLimits(seconds=limit_s, bytes=LIMIT_BYTES),
        complete=all(source.outcome in ("collected", "skipped") for source in told),
        sources=told,
    )
    files["MANIFEST.json"] = (manifest.model_dump_json(by_alias=True, indent=2) + "\n").encode()
    write_archive(file, files)
    return manifest


def _within(source: Source, limit_s: float) -> Found | str | None:
    """What a source gives within its time; the reason why it gives nothing; None: it is skipped."""
    if source.collect is None:
        return None
    box: list[Found | str] = []
    worker = threading.Thread(target=lambda: box.append(_collect(source)), daemon=True)
    worker.start()
    worker.join(limit_s)
    return box[0] if box else f"it took longer than {limit_s:g} s"


def _collect(source: Source) -> Found | str:
    assert source.collect is not None
    try:
        return source.collect()
    except (NothingError, UnreachableError, RefusedError) as error:
        return str(error)
    except OSError as error:
        return error.strerror or type(error).__name__
    except Exception as error:  # one source that goes wrong must not cost the others
        return f"{type(error).__name__} while it was read"


def _bundled(source: Source, found: Found | str | None, redactor: Redactor, files: dict[str, bytes]) -> BundledSource:
    """Redact what was collected, and tell of it."""
    name, file = redactor.text(source.name), redactor.text(source.file)
    redactor.counts.clear()
    if not isinstance(found, Found):
        outcome: Literal["skipped", "missing"] = "skipped" if found is None else "missing"
        reason = redactor.text(source.skipped if found is None else str(found))
        return BundledSource(name=name, file=None, outcome=outcome, reason=reason, redactions={})
    if isinstance(found.content, str) and len(found.content) > LIMIT_BYTES:
        found = Found(found.content[-LIMIT_BYTES:], f"only its last {LIMIT_BYTES} bytes")
    content = _content(source, found.content, redactor).encode()
    partial = found.partial
    if len(content) > LIMIT_BYTES:
        content, partial = content[-LIMIT_BYTES:], f"only its last {LIMIT_BYTES} bytes"
    files[file] = content
    redactions = dict(sorted(redactor.counts.items()))
    return BundledSource(
        name=name,
        file=file,
        outcome="partial" if partial else "collected",
        reason=redactor.text(partial),
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        redactions=redactions,
    )


def _content(source: Source, content: Any, redactor: Redactor) -> str:
    if source.kind == "text":
        return redactor.text(str(content))
    if source.kind == "rows":
        return "".join(json.dumps(_row(row, redactor), ensure_ascii=False) + "\n" for row in content)
    if source.kind in ("own", "engine"):
        lines = redactor.text("\n".join(content)).splitlines()  # as one: a key may have several lines
        return "".join(line + "\n" for line in (lines if redactor.asked.messages else _told(source, lines)))
    return json.dumps(redactor.document(content), indent=2, ensure_ascii=False) + "\n"


def _told(source: Source, lines: Sequence[str]) -> Sequence[str]:
    return list((told_by_us if source.kind == "own" else told_by_engine)(lines))


def _row(row: Any, redactor: Redactor) -> Any:
    """A row of the journal: clients may have chosen the id of a request."""
    found = redactor.document(row)
    if isinstance(found, dict) and found.get("type") == "request" and not redactor.asked.names:
        found["id"] = redactor.pseudonym("request", str(row["id"]))
    return found


def write_archive(file: Path, files: dict[str, bytes]) -> None:
    """Write a `.tar.gz` that only its owner may read, whole or not at all; nothing in it tells who made it."""
    temporary = file.with_name(f".{file.name}.new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with (
            os.fdopen(fd, "wb") as raw,
            gzip.GzipFile("", "wb", fileobj=raw) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name in sorted({ROOT, *(_folder(name) for name in files)}):
                archive.addfile(_entry(name, folder=True))
            for name, content in files.items():
                archive.addfile(_entry(f"{ROOT}/{name}", size=len(content)), io.BytesIO(content))
        os.link(temporary, file)  # refuses a file that is there already
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _folder(name: str) -> str:
    return f"{ROOT}/{name}".rpartition("/")[0]


def _entry(name: str, *, size: int = 0, folder: bool = False) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime = size, int(time.time())
    entry.type, entry.mode = (tarfile.DIRTYPE, 0o700) if folder else (tarfile.REGTYPE, 0o600)
    return entry
