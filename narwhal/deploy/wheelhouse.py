"""The wheels that some requirements need on another machine: found with pip, closed over by what the wheels say."""

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from narwhal.deploy.errors import DeployError

_GLIBC_MINORS = range(34, 16, -1)
"""glibc 2.34 and older: what RHEL 9, Debian 12 and Ubuntu 22.04 all have."""
_ROUNDS = 20
_OFFLINE = re.compile(
    "NewConnectionError|NameResolutionError|ConnectTimeoutError|Failed to resolve|Network is unreachable"
)
"""What pip warns of before it says that it found no distribution."""


@dataclass(frozen=True, slots=True)
class Target:
    """The machines that wheels are for."""

    python: str
    """Version, such as `3.11`."""
    machine: str
    """`x86_64` or `aarch64`."""

    def pip_options(self) -> list[str]:
        """What tells pip so."""
        platforms = [f"manylinux_2_{minor}_{self.machine}" for minor in _GLIBC_MINORS]
        platforms += [f"manylinux2014_{self.machine}", f"linux_{self.machine}"]
        options = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", self.python]
        return [*options, *(part for platform in platforms for part in ("--platform", platform))]

    def environment(self, extra: str) -> dict[str, str]:
        """What markers are judged by."""
        return {
            "extra": extra,
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }


@dataclass(frozen=True, slots=True)
class Source:
    """Where wheels come from: PyPI as pip is configured, or a folder of them."""

    folder: Path | None = None

    def pip_options(self) -> list[str]:
        """What tells pip so."""
        return [] if self.folder is None else ["--no-index", "--find-links", str(self.folder)]


def collect(requirements: Sequence[str], target: Target, source: Source, into: Path) -> list[Path]:
    """Fetch what `requirements` need on the target into a folder; the wheels, sorted by name.

    pip judges markers (`python_version < "3.12"`) by the Python it runs with, so what the target lacks by the wheels'
    own word is fetched as well, and what it does not need is left out. Raises `DeployError`.
    """
    _download(requirements, target, source, into, deps=True)
    for _ in range(_ROUNDS):
        needed, missing = _closure(requirements, target, into)
        if not missing:
            return sorted(needed)
        _download(missing, target, source, into, deps=False)
    hint = "pin the requirements"
    raise DeployError("wheelhouse", f"no end of requirements, {missing[0]} being the last", hint=hint)


def requirement_lines(wheels: Iterable[Path], digests: Iterable[str]) -> str:
    """`requirements.txt`: each wheel by name, version and hash, for `pip install --require-hashes`."""
    lines = []
    for wheel, digest in zip(wheels, digests, strict=True):
        name, version, _, _ = parse_wheel_filename(wheel.name)
        lines.append(f"{name}=={version} --hash={digest}\n")
    return "".join(sorted(lines))


def requires(wheel: Path, target: Target, extras: Iterable[str] = ()) -> list[Requirement]:
    """What a wheel says it needs on the target."""
    found = [Requirement(text) for text in _metadata(wheel)]
    wanted = ["", *extras]
    return [
        one
        for one in found
        if one.marker is None or any(one.marker.evaluate(target.environment(extra)) for extra in wanted)
    ]


def is_metadata(path: str) -> bool:
    """Whether a file of a wheel is its own METADATA, rather than that of something which lies in it."""
    return path.count("/") == 1 and path.endswith(".dist-info/METADATA")


def _metadata(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        found = next(name for name in archive.namelist() if is_metadata(name))
        return HeaderParser().parsestr(archive.read(found).decode()).get_all("Requires-Dist") or []


def _closure(requirements: Sequence[str], target: Target, folder: Path) -> tuple[set[Path], list[str]]:
    """The wheels of a folder that the requirements reach, and requirements that none of them meets."""
    here = dict(_wheels(folder))
    needed, missing, seen = set(), [], set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        one = waiting.pop()
        key = (canonicalize_name(one.name), frozenset(one.extras))
        if key in seen:
            continue
        seen.add(key)
        if key[0] not in here:
            missing.append(f"{one.name}{one.specifier}")
            continue
        needed.add(here[key[0]])
        waiting += requires(here[key[0]], target, one.extras)
    return needed, missing


def _wheels(folder: Path) -> Iterator[tuple[str, Path]]:
    for wheel in sorted(folder.glob("*.whl")):
        yield canonicalize_name(parse_wheel_filename(wheel.name)[0]), wheel


def _download(requirements: Sequence[str], target: Target, source: Source, into: Path, *, deps: bool) -> None:
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--retries", "2", "--dest", str(into)]
    argv += [*source.pip_options(), *target.pip_options(), *([] if deps else ["--no-deps"]), *requirements]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or done.stderr.splitlines()
    said = (lines or ["pip said nothing"])[-1].removeprefix("ERROR: ")
    hint = "--wheelhouse DIR takes wheels from a folder; metadata.python names the hosts' version"
    if _OFFLINE.search(done.stderr):
        said = "the package index cannot be reached"
    if "No module named pip" in said:
        hint = f"{sys.executable} -m ensurepip"
    raise DeployError("wheelhouse", f"Python {target.python} on {target.machine}: {said}", hint=hint)
