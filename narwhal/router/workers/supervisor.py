"""The process that was started: starts control and the workers, starts again what dies, and serves nothing itself.

It has no loop and no thread, so that it can fork: what it has read and imported is shared with all that it starts.
"""

import asyncio
import contextlib
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

import uvloop

from narwhal.control import Settings
from narwhal.engine.notify import notify
from narwhal.fleet import FleetError, ProfileError, SourceError, open_fleet
from narwhal.router.errors import ServeError
from narwhal.router.front import Clients
from narwhal.router.journal import Journal
from narwhal.router.listeners import bind
from narwhal.router.members import fleet_profile
from narwhal.router.metrics import Metrics
from narwhal.router.process import Part, calm_collector, run
from narwhal.router.shell import Shell
from narwhal.router.tenants import Keys
from narwhal.router.workers.channel import FAILED, MOST_BYTES, RELOAD, STOP, Channel, send_worker
from narwhal.router.workers.clients import GRACE_S, WorkersClients
from narwhal.router.workers.hub import Hub
from narwhal.router.workers.relay import relay

log = logging.getLogger("narwhal.router")
SHORT_LIFE_S = 10.0
"""A control that dies within this time of its start, in seconds, is not started again."""
RETRY_S = 1.0
"""A worker that dies within this time of its start waits for as long before the next one is started."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
Body = Callable[[], Coroutine[Any, Any, None]]
"""What a process does."""
_CANNOT = 4
"""Exit status of a worker that cannot listen."""


@dataclass(slots=True)
class Crew:
    """A control and its workers."""

    control: int
    channel: socket.socket
    began_t: float
    serving: bool = False
    """Whether it has said that it serves."""
    workers: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Slot and start of each, by pid."""


class Supervisor:
    """Starts a crew, and another once its control is dead: the workers of the former are orphans, which only finish."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._crew: Crew | None = None
        self._orphans: set[int] = set()
        self._due: dict[int, float] = {}
        """When a worker is to be started, by slot."""
        self._end_t = float("inf")
        """When whatever still runs is ended."""
        self._stopping = False
        self._failure = ""
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises `ServeError` when it cannot, or no longer."""
        router = self._part.expanded.routers[0]
        if self._part.expanded.share_port:
            text = "routers.workers: workers cannot take turns on one port with a standby of the same host"
            raise ServeError(f"{text}; give it a port of its own (routers.standby_port)")
        bind(router.bind, router.port, "routers", shared=False).close()  # another router's port would be shared with it
        calm_collector()  # what it has is shared with all that it forks, as long as nobody writes to it
        with _caught_signals() as wake:
            self._selector.register(wake, selectors.EVENT_READ)
            self._begin()
            while self._crew is not None or self._orphans:
                for key, _ in self._selector.select(self._patience_s()):
                    if key.fileobj is wake:
                        self._take_signals(wake.recv(64))
                    else:
                        self._hear()
                self._start_due()
                self._end_overdue()
        if self._failure:
            raise ServeError(self._failure)

    def _patience_s(self) -> float | None:
        until = min([self._end_t, *self._due.values()])
        return None if until == float("inf") else max(until - time.monotonic(), 0.0)

    # Starting

    def _begin(self) -> None:
        """Start a control and all its workers."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = self._fork(partial(self._control, its), ours, failed=its)
        its.close()
        self._crew = Crew(pid, ours, time.monotonic())
        self._selector.register(ours, selectors.EVENT_READ)
        now = time.monotonic()
        self._due = dict.fromkeys(range(self._part.expanded.fleet.routers.workers), now)

    async def _relay(self, sock: socket.socket) -> None:
        await relay(self._part, sock)

    async def _control(self, sock: socket.socket) -> None:
        part, loop = self._part, asyncio.get_running_loop()
        fleet, channel = part.expanded.fleet, Channel(loop, sock)

        def assemble(settings: Settings, journal: Journal, keys: Keys) -> tuple[Shell, Clients]:
            hub = Hub(settings, loop, journal, Metrics(), fleet, fleet.routers.workers)
            channel.attach = hub.attach
            return hub, WorkersClients(hub)

        await run(part, assemble, channel)

    def _start_due(self) -> None:
        crew, now = self._crew, time.monotonic()
        if crew is None or self._stopping:
            self._due.clear()
            return
        for slot in [slot for slot, t in self._due.items() if t <= now]:
            del self._due[slot]
            control_end, its = socket.socketpair()
            pid = self._fork(partial(self._relay, its), crew.channel, control_end)
            crew.workers[pid] = slot, now
            its.close()
            with control_end, contextlib.suppress(OSError):  # it is dead: its end is seen to in a moment
                send_worker(crew.channel, slot, pid, control_end)

    def _fork(self, body: Body, *closed: socket.socket, failed: socket.socket | None = None) -> int:
        """Start a process that does this and ends. `closed`: sockets that it must not hold."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        pid = os.fork()
        if pid == 0:
            _be_child(body, [*closed, *([self._crew.channel] if self._crew else [])], failed)
        return pid

    # Signals and news

    def _take_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number in (signal.SIGTERM, signal.SIGINT):
                self._stop()
            elif number == signal.SIGHUP:
                self._order(RELOAD)
        self._reap()

    def _stop(self) -> None:
        """Have requests finish and everything end; at once the second time."""
        again, self._stopping = self._stopping, True
        shutdown_s = 0.0 if again else self._part.expanded.fleet.serving.shutdown_s
        self._end_t = time.monotonic() + shutdown_s + 3 * GRACE_S
        self._order(STOP)
        if again or self._crew is None:
            _signal(self._orphans, signal.SIGTERM)

    def _order(self, word: bytes) -> None:
        if self._crew is not None:
            with contextlib.suppress(OSError):  # it is dead: its end is seen to in a moment
                self._crew.channel.send(word)

    def _hear(self) -> None:
        """What control says."""
        crew = self._crew
        if crew is None:
            return
        try:
            said = crew.channel.recv(MOST_BYTES).decode()
        except OSError:
            said = ""
        if not said:
            self._selector.unregister(crew.channel)  # its end follows
        elif said.startswith(FAILED.decode()):
            self._failure = said.removeprefix(FAILED.decode())
        else:
            if said == "READY=1" and not crew.serving:
                crew.serving = True
                _signal(self._orphans, signal.SIGTERM)  # others accept clients now
            notify(said)

    # Ends

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            crew = self._crew
            if crew is not None and pid == crew.control:
                self._control_ended(crew, status)
            elif crew is not None and pid in crew.workers:
                self._worker_ended(crew, pid, status)
            else:
                self._orphans.discard(pid)

    def _worker_ended(self, crew: Crew, pid: int, status: int) -> None:
        slot, began_t = crew.workers.pop(pid)
        if self._stopping:
            return
        if not crew.serving and os.waitstatus_to_exitcode(status) == _CANNOT:
            self._failure = "a worker cannot begin; the line above says why"
            self._stop()
            return
        now = time.monotonic()
        log.warning("worker %d (pid %d) ended (%s): another is started", slot, pid, _words(status))
        self._due[slot] = now if now - began_t > RETRY_S else now + RETRY_S

    def _control_ended(self, crew: Crew, status: int) -> None:
        """The process that decides is gone. Start another, unless that is over or was in vain."""
        while crew.channel in self._selector.get_map():
            self._hear()
        self._crew = None
        self._orphans |= set(crew.workers)
        crew.channel.close()
        life_s = time.monotonic() - crew.began_t
        if self._stopping:
            _signal(crew.workers, signal.SIGTERM)
            return
        if self._failure or not crew.serving or life_s < SHORT_LIFE_S:
            said = f"the process that decides ended ({_words(status)}) {life_s:.0f} s after its start"
            self._failure = self._failure or said
            self._stop()
            return
        log.error(
            "the process that decides (pid %d) ended (%s): another is started, running streams finish",
            *(crew.control, _words(status)),
        )
        self._read_again()
        self._part = replace(self._part, resume=True)  # from what the dead one kept, if it did
        self._begin()

    def _read_again(self) -> None:
        """A control that starts goes by the file as it is now, as a router that starts does."""
        if self._part.file is None:
            return
        try:
            own = self._part.expanded.routers[0]
            expanded = open_fleet(self._part.file).of_router(standby=own.standby)
            profile = fleet_profile(expanded.fleet)
            self._part = replace(self._part, expanded=expanded, profile=profile)
        except (ValueError, FleetError, SourceError, ProfileError):
            log.error("%s cannot be used now; starting with what it said before", self._part.file)

    def _end_overdue(self) -> None:
        if time.monotonic() < self._end_t:
            return
        self._end_t = float("inf")
        crew = self._crew
        pids = [*self._orphans, *([crew.control, *crew.workers] if crew else [])]
        log.error("%d processes did not end in time and are killed", len(pids))
        _signal(pids, signal.SIGKILL)


def supervise(part: Part) -> None:
    """Serve with `routers.workers` processes on the client port. Raises `ServeError`."""
    Supervisor(part).run()


@contextlib.contextmanager
def _caught_signals() -> Iterator[socket.socket]:
    """A socket on which the numbers of signals come."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = [signal.signal(number, lambda *_: None) for number in _SIGNALS]
    signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    try:
        with ours, theirs:
            yield ours
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in zip(_SIGNALS, before, strict=True):
            signal.signal(number, handler)


def _be_child(body: Body, closed: list[socket.socket], failed: socket.socket | None) -> NoReturn:
    """Go on as the process that was just forked. `failed`: where to say that it cannot begin; None: in the log."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the supervisor says when; a terminal tells all of them
        for sock in closed:
            sock.close()
        if os.environ.get("LISTEN_PID") == str(os.getppid()):
            os.environ["LISTEN_PID"] = str(os.getpid())  # a socket that systemd passed is passed on
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(body())
        status = 0
    except ServeError as error:
        status = _CANNOT
        if failed is not None:
            failed.send(FAILED + str(error).encode())
        else:
            log.error("worker: %s", error)
    except BaseException:
        log.exception("pid %d ends", os.getpid())
    finally:
        logging.shutdown()
        os._exit(status)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    """Signal children that were not waited for yet, so that their numbers are nobody else's."""
    for pid in pids:
        os.kill(pid, number)


def _words(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"exit status {code}" if code >= 0 else signal.Signals(-code).name
