"""Narwhal's own wheel: built from a checkout, or put together again from an installation."""

import base64
import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path

from narwhal.deploy.errors import DeployError
from narwhal.deploy.wheelhouse import is_metadata
from narwhal.documents import data_path

NAME = "narwhal-inference"
_OF_THE_INSTALLER = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def own_wheel(folder: Path) -> Path:
    """Write the wheel of the Narwhal that runs into a folder; the same bytes whichever way it is here.

    Raises `DeployError` when an installed file was changed, or the checkout cannot be built.
    """
    data = data_path()
    files = _installed() if data.name == "_data" else _built(data)
    name = next(path for path in files if is_metadata(path))
    name = name.partition(".dist-info")[0]
    wheel = folder / f"{name}-py3-none-any.whl"
    wheel.write_bytes(b"")
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:  # compressed bytes differ from zlib to zlib
        for path, content in [*sorted(files.items()), (f"{name}.dist-info/RECORD", _record(name, files))]:
            info = zipfile.ZipInfo(path, _EPOCH)
            info.external_attr = 0o100644 << 16
            archive.writestr(info, content)
    return wheel


def _record(name: str, files: Mapping[str, bytes]) -> bytes:
    lines = [f"{path},sha256={_hash(data)},{len(data)}\n" for path, data in sorted(files.items())]
    return "".join([*lines, f"{name}.dist-info/RECORD,,\n"]).encode()


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def _built(root: Path) -> dict[str, bytes]:
    """The files of the wheel that a checkout builds to."""
    with tempfile.TemporaryDirectory() as out:
        isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
        argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolation, "--wheel-dir", out, str(root)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            hint = f"{sys.executable} -m pip install hatchling, or run narwhal from an installed wheel"
            raise DeployError("package", f"the checkout does not build: {said}", file=str(root), hint=hint)
        (wheel,) = Path(out).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            return {name: archive.read(name) for name in archive.namelist() if not name.endswith(".dist-info/RECORD")}


def _installed() -> dict[str, bytes]:
    """The files that were installed from a wheel, as its RECORD names them."""
    found = _distribution()
    files = {}
    for entry in found.files or ():
        path = entry.as_posix()
        if path.startswith("..") or "__pycache__" in entry.parts or _of_the_installer(entry):
            continue
        files[path] = data = Path(str(found.locate_file(entry))).read_bytes()
        if entry.hash is not None and entry.hash.value != _hash(data):
            hint = f"install it again: {sys.executable} -m pip install --force-reinstall --no-deps {NAME}"
            raise DeployError("changed", "it was changed after it was installed", file=str(entry.locate()), hint=hint)
    return files


def _of_the_installer(entry: PackagePath) -> bool:
    """Whether a file beside METADATA says how something was installed, and is no part of the wheel."""
    return len(entry.parts) == 2 and entry.parent.suffix == ".dist-info" and entry.name in _OF_THE_INSTALLER


def _distribution() -> Distribution:
    try:
        return distribution(NAME)
    except PackageNotFoundError:
        hint = "run narwhal from a checkout, or from an environment that pip made"
        raise DeployError("package", f"{NAME} is not installed as a package", hint=hint) from None
