"""The C programs of this bench: built where they are stale, started, and asked."""

import json
import shutil
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parent / "c"
BUILD = SOURCES.parents[2] / "build" / "bench"
"""Ignored by git: programs, the peers' environments, logs."""
PROGRAMS = ("mock", "load", "floor")
TLS = ("-DWITH_TLS", "-lssl", "-lcrypto")
"""How the load generator is built where OpenSSL's headers are; without them it cannot do `--tls`."""
NO_TLS = 3
"""Exit code of a load generator that was built without TLS."""
ENGINE_PACE_US = 50_000
"""Between two tokens of a stream where streams are paced: 20 tokens a second."""


class ToolError(Exception):
    """The bench cannot go on; the message says why and what to do."""


def build() -> None:
    """Compile what is older than its sources. Raises `ToolError`."""
    BUILD.mkdir(parents=True, exist_ok=True)
    newest = max(path.stat().st_mtime for path in SOURCES.glob("*.[ch]"))
    stale = [name for name in PROGRAMS if not _is_current(BUILD / name, newest)]
    if not stale:
        return
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise ToolError("no C compiler (cc, gcc or clang) found; install one: apt-get install gcc libc6-dev")
    for name in stale:
        said = _compile(compiler, name, TLS) and _compile(compiler, name, ())
        if said:
            raise ToolError(said)


def _compile(compiler: str, name: str, more: tuple[str, ...]) -> str:
    """Compile a program; what went wrong, or nothing."""
    argv = [compiler, "-std=gnu17", "-O2", "-Wall", "-Wextra", "-o", str(BUILD / name), str(SOURCES / f"{name}.c")]
    done = subprocess.run([*argv, "-lm", *more], capture_output=True, text=True, check=False)
    return f"{' '.join(argv)} failed:\n{done.stderr.strip()}" if done.returncode else ""


def _is_current(program: Path, newest: float) -> bool:
    return program.is_file() and program.stat().st_mtime > newest


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of one kind of event in a load."""

    n: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load generator saw. `load.c` says what each field counts."""

    ok: int
    failed: int
    refused: int
    within: int
    unfinished: int
    dropped: int
    bad_status: int
    out_of_order: int
    chunks: int
    reads: int
    bytes: int
    seconds: float
    first_byte_ms: Times
    chunk_delay_ms: Times
    whole_ms: Times
    refusal_ms: Times


class Load:
    """A load generator that runs."""

    def __init__(self, port: int, **options: float | bool) -> None:
        """Options as in `load.c`, with `_` for `-`; True: a flag."""
        argv = [str(BUILD / "load"), "--port", str(port)]
        for name, value in options.items():
            if value is False:
                continue
            argv.append("--" + name.replace("_", "-"))
            if value is not True:
                argv.append(str(value))
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)

    @property
    def running(self) -> bool:
        """Whether it still asks."""
        return self.process.poll() is None

    def result(self) -> Loaded:
        """Wait for its end. Raises `ToolError` when it ended without a result."""
        try:
            out, _ = self.process.communicate()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        if self.process.returncode == NO_TLS:
            raise ToolError(
                f"no OpenSSL headers when {BUILD / 'load'} was built; apt-get install libssl-dev, delete it"
            )
        if self.process.returncode:
            raise ToolError(f"the load generator ended with {self.process.returncode}")
        seen: dict[str, Any] = json.loads(out)
        fields: dict[str, Any] = {name: Times(**v) if isinstance(v, dict) else v for name, v in seen.items()}
        return Loaded(**fields)


def load(port: int, **options: float | bool) -> Loaded:
    """Run a load to its end."""
    return Load(port, **options).result()


class Mock:
    """The mock engines, a prefill and a decode port in one process. A context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [str(BUILD / "mock")], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ToolError("the mock engines did not start")
        ports = json.loads(line)
        self.prefill: int = ports["prefill"]
        self.decode: int = ports["decode"]
        self.pid = self._process.pid

    def __enter__(self) -> "Mock":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def set(self, *, pace_us: int = 0, in_phase: bool = False, burst: int = 1) -> dict[str, int]:
        """How tokens come from now on; returns the counters."""
        return self._ctl(f"?pace_us={pace_us}&in_phase={in_phase:d}&burst={burst}")

    def counters(self) -> dict[str, int]:
        """`active` streams, `chunks` made, `aborts` and when the last one was noticed (`aborted_ns`), …"""
        return self._ctl("")

    def _ctl(self, query: str) -> dict[str, int]:
        if self._process.poll() is not None:
            raise ToolError(f"the mock engines ended with {self._process.returncode}")
        with urllib.request.urlopen(f"http://127.0.0.1:{self.decode}/ctl{query}", timeout=60) as answer:
            counters: dict[str, int] = json.load(answer)
            return counters


if __name__ == "__main__":
    try:
        build()
    except ToolError as error:
        sys.exit(f"bench: {error}")
