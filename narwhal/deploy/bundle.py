"""The bundle: all that is installed on a host, in one file whose digest is the fleet's revision."""

import hashlib
import io
import os
import platform
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from packaging.utils import canonicalize_name
from pydantic import Field

import narwhal
from narwhal.deploy.ownwheel import own_wheel
from narwhal.deploy.wheelhouse import Source, Target, collect, requirement_lines, requires
from narwhal.documents import Document
from narwhal.fleet.model import Digest, Fleet, Text

BUNDLE = "bundle.tar"
_NOT_ON_HOSTS = ("ansible-core",)
"""What only the operator's machine needs: a third of the size."""


class Bundle(Document):
    """What a bundle holds; `bundle.json` in it."""

    kind: Literal["Bundle"]
    """This is a bundle."""
    narwhal: Text
    """Version of Narwhal in it."""
    python: Text
    """Version of Python that its wheels are for."""
    machine: Literal["x86_64", "aarch64"]
    """Machine that its wheels are for."""
    engine: Text | None
    """Requirement that installs the engine; null: the engine is not in it."""
    files: Annotated[dict[str, Digest], Field(min_length=1)]
    """Digest of every other file in it, by path."""


@dataclass(frozen=True, slots=True)
class BundleWish:
    """A bundle that is to be made."""

    target: Target
    source: Source
    engine: str | None = None
    """Requirement of the engine's package, when it goes in too."""


def default_wish(fleet: Fleet) -> BundleWish:
    """The bundle that a fleet needs: from PyPI, for `metadata.python` or this Python, and machines like this one."""
    python = fleet.metadata.python or f"{sys.version_info.major}.{sys.version_info.minor}"
    return BundleWish(Target(python, platform.machine()), Source())


def make_bundle(wish: BundleWish, output: Path, say: Callable[[str], None]) -> str:
    """Write the bundle and return its digest; the same wheels make the same bytes. Raises `DeployError`."""
    with tempfile.TemporaryDirectory(prefix="narwhal-package-") as name:
        folder = Path(name)
        own, engine = folder / "own", folder / "engine"
        own.mkdir()
        say("the wheel of narwhal itself")
        wheel = own_wheel(own)
        wanted = [str(one) for one in requires(wheel, wish.target) if canonicalize_name(one.name) not in _NOT_ON_HOSTS]
        say(f"wheels for Python {wish.target.python} on {wish.target.machine}")
        wheels = [wheel, *collect([_bare(text) for text in wanted], wish.target, wish.source, own)]
        files = {"requirements.txt": _requirements(wheels)}
        if wish.engine is not None:
            engine.mkdir()
            say(f"{wish.engine} and what it needs")
            of_engine = collect([wish.engine], wish.target, wish.source, engine)
            files["requirements-engine.txt"] = _requirements(of_engine)
            wheels += of_engine
        return _write(wish, output, files, {f"wheelhouse/{path.name}": path for path in wheels})


def file_digest(path: Path) -> str:
    """SHA-256 of a file, as `sha256:…`."""
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def _bare(requirement: str) -> str:
    """A requirement without its marker, which was judged already."""
    return requirement.partition(";")[0].strip()


def _requirements(wheels: list[Path]) -> bytes:
    return requirement_lines(wheels, [file_digest(wheel) for wheel in wheels]).encode()


def _write(wish: BundleWish, output: Path, texts: dict[str, bytes], wheels: dict[str, Path]) -> str:
    digests = {path: "sha256:" + hashlib.sha256(data).hexdigest() for path, data in texts.items()}
    digests |= {path: file_digest(wheel) for path, wheel in wheels.items()}
    bundle = Bundle(
        kind="Bundle",
        narwhal=narwhal.__version__,
        python=wish.target.python,
        machine="aarch64" if wish.target.machine == "aarch64" else "x86_64",
        engine=wish.engine,
        files=dict(sorted(digests.items())),
    )
    texts["bundle.json"] = (bundle.model_dump_json(by_alias=True, indent=2) + "\n").encode()
    output.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(prefix=".bundle.", dir=output.parent)
    try:
        with os.fdopen(fd, "wb") as raw, tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path in sorted([*texts, *wheels]):
                _add(archive, path, texts.get(path) or wheels[path])
        Path(name).chmod(0o644)
        os.replace(name, output)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return file_digest(output)


def _add(archive: tarfile.TarFile, path: str, content: bytes | Path) -> None:
    """Add a file that differs from run to run in nothing but its content."""
    info = tarfile.TarInfo(path)
    info.mode = 0o644
    info.size = len(content) if isinstance(content, bytes) else content.stat().st_size
    with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
        archive.addfile(info, file)
