"""Running Prometheus and Alertmanager on loopback beside a router, until they are told to end."""

import ctypes
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from narwhal.dev import cleaned_up, free_run
from narwhal.fleet import Expanded
from narwhal.observe.files import ALERTMANAGER, PROMETHEUS, observe_files, write_files

PROGRAMS = {"prometheus": ("prometheus",), "alertmanager": ("alertmanager", "prometheus-alertmanager")}
"""Names that a program may have on PATH."""
_START_S = 60.0
"""How long one may take until it is ready."""
_END_S = 10.0
_PR_SET_PDEATHSIG = 1


class UnavailableError(Exception):
    """A program is missing, or did not start; the message names it and the next step."""


@dataclass(frozen=True, slots=True)
class Running:
    """What runs, and where it is reached."""

    prometheus_url: str
    alertmanager_url: str | None
    """None: there is no Alertmanager on PATH."""
    folder: Path
    """Its files, logs and data."""
    processes: tuple["subprocess.Popen[bytes]", ...]

    def ended(self) -> bool:
        """Whether one of them has ended by itself."""
        return any(process.poll() is not None for process in self.processes)


def find_program(name: str) -> str | None:
    """Path of a program under one of its names."""
    return next((path for each in PROGRAMS[name] if (path := shutil.which(each))), None)


@contextmanager
def run(expanded: Expanded, folder: Path) -> Iterator[Running]:
    """Have both run with the files of a fleet, in a folder that keeps their data. Raises `UnavailableError`."""
    prometheus, alertmanager = find_program("prometheus"), find_program("alertmanager")
    if prometheus is None:
        hint = "install it (Debian: apt-get install prometheus prometheus-alertmanager)"
        raise UnavailableError(f"there is no prometheus on PATH: {hint}, or use `narwhal observe render`")
    first = free_run(2)
    at = [f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}"]
    write_files(folder, observe_files(_with_alertmanager(expanded, at[1])))
    argv = [prometheus, f"--config.file={folder / PROMETHEUS}", f"--storage.tsdb.path={folder / 'data'}"]
    argv += [f"--web.listen-address={at[0]}", "--storage.tsdb.retention.time=15d", "--log.level=warn"]
    with cleaned_up() as stack:
        processes = [_start(argv, folder / "prometheus.log")]
        stack.callback(_end, processes)
        if alertmanager is not None:
            argv = [alertmanager, f"--config.file={folder / ALERTMANAGER}", f"--storage.path={folder / 'alerts'}"]
            argv += [f"--web.listen-address={at[1]}", "--cluster.listen-address=", "--log.level=warn"]
            processes.append(_start(argv, folder / "alertmanager.log"))
        urls = [f"http://{address}" for address in at[: len(processes)]]
        for url, process, name in zip(urls, processes, PROGRAMS, strict=False):
            _wait(url, process, folder / f"{name}.log")
        yield Running(urls[0], urls[1] if len(urls) > 1 else None, folder, tuple(processes))


def _with_alertmanager(expanded: Expanded, address: str) -> Expanded:
    fleet = expanded.fleet
    scraping = fleet.observability.prometheus.model_copy(update={"alertmanager": address})
    observability = fleet.observability.model_copy(update={"prometheus": scraping})
    return replace(expanded, fleet=fleet.model_copy(update={"observability": observability}))


def _start(argv: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    libc = ctypes.CDLL(None)

    def die_with_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))

    with log.open("ab") as out:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, preexec_fn=die_with_parent
        )


def _end(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until one is ready. Raises `UnavailableError`."""
    until_t = time.monotonic() + _START_S
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # on loopback, whatever the environment says
    while True:
        try:
            with opener.open(f"{url}/-/ready", timeout=5):
                return
        except OSError:
            pass
        if process.poll() is not None or time.monotonic() > until_t:
            said = " | ".join(log.read_text(errors="replace").splitlines()[-3:])
            raise UnavailableError(f"{os.path.basename(str(process.args[0]))} did not start: {said}")  # type: ignore[index]
        time.sleep(0.1)  # the pause of the poll
