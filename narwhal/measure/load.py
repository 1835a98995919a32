"""Open-loop load: every request is sent at its planned time, whatever became of the ones before it."""

import asyncio
import contextlib
import ipaddress
import os
import resource
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from narwhal.measure.outcome import Outcome
from narwhal.measure.prompts import IdPrompts, Prompts
from narwhal.measure.schedule import Planned
from narwhal.measure.stream import CompletionProtocol


@dataclass(frozen=True, slots=True)
class Target:
    """Where the load goes."""

    host: str
    port: int
    model: str
    api_key: str = ""
    path: str = "/v1/completions"
    """Or `/v1/chat/completions`; the prompts are of that kind."""
    tls: ssl.SSLContext | None = None
    """How the server is known by https; None: plain HTTP."""


class Load:
    """Plays a schedule against a target, one connection for each request.

    `outcomes` holds one record for each request sent so far, in order of sending; it is complete when `run`
    returns. Without `prompts` these are token ids drawn from `seed` that differ from their first token on, so that no
    prefix cache helps. `timeout_s` ends a request whose answer is not complete by then, `drain_s` after the last was
    sent ends the load, and with `name` each request has an `x-request-id`: `NAME-NUMBER`.
    """

    def __init__(
        self,
        target: Target,
        schedule: Sequence[Planned],
        *,
        seed: int = 0,
        prompts: Prompts | None = None,
        name: str = "",
        timeout_s: float = 120.0,
        drain_s: float | None = None,
        on_end: Callable[[Outcome], None] | None = None,
    ) -> None:
        self.target = target
        self.schedule = schedule
        self.outcomes: list[Outcome] = []
        self.in_flight_max = 0
        """Most requests under way at a time."""
        self._address = target.host
        self._prompts = prompts or IdPrompts(seed)
        self._name = name
        self._timeout_s = timeout_s
        self._drain_s = drain_s
        self._on_end = on_end
        self._running: dict[int, CompletionProtocol] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self.started_t = 0.0
        """When it began, on the monotonic clock."""
        self._clock = self.elapsed_s
        self._unsent = deque(schedule)
        self._next_send: asyncio.TimerHandle | None = None
        self._end: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Requests that were sent and have no outcome yet."""
        return len(self._running)

    def elapsed_s(self) -> float:
        """Seconds since the start of the load, on the clock of its outcomes; 0 before it."""
        return time.monotonic() - self.started_t if self.started_t else 0.0

    async def run(self) -> list[Outcome]:
        """Send everything, wait for every outcome, and return them.

        Cancelling the task (Ctrl-C) or `cancel()` closes what is running: those requests end as `cancelled`,
        and the server sees its client leave.
        """
        _raise_file_limit()
        self._address = await asyncio.to_thread(_address, self.target)
        self.started_t = started_t = time.monotonic()
        monotonic = time.monotonic
        self._clock = lambda: monotonic() - started_t  # read for every chunk: no more than it needs
        try:
            self._send_due()
            await self._over.wait()
        finally:
            self.cancel()
        return self.outcomes

    def cancel(self) -> None:
        """Send nothing more, and give up what is running."""
        for timer in (self._next_send, self._end):
            if timer is not None:
                timer.cancel()
        self._unsent.clear()
        for protocol in list(self._running.values()):
            protocol.end("cancelled by the client", cancelled=True)
        for task in self._connecting:
            task.cancel()
        self._over.set()

    def _send_due(self) -> None:
        """Send all that is due, then sleep until the next is: one wake-up, however many came due meanwhile."""
        while self._unsent and self._unsent[0].t_s <= self.elapsed_s():
            self._send(self._unsent.popleft())
        if self._unsent:
            delay_s = self._unsent[0].t_s - self.elapsed_s()
            self._next_send = asyncio.get_running_loop().call_later(max(delay_s, 0.0), self._send_due)
        elif not self._running:
            self._over.set()
        elif self._drain_s is not None:
            self._end = asyncio.get_running_loop().call_later(self._drain_s, self.cancel)

    def _send(self, planned: Planned) -> None:
        number = len(self.outcomes)
        id_ = f"{self._name}-{number}" if self._name else ""
        outcome = Outcome(planned, self.elapsed_s(), id=id_)
        self.outcomes.append(outcome)
        request = _request(self.target, planned, self._prompts.field(number, planned.prompt_tokens), id_)
        protocol = CompletionProtocol(request, outcome, self._clock, partial(self._ended, number))
        self._running[number] = protocol
        self.in_flight_max = max(self.in_flight_max, len(self._running))
        loop = asyncio.get_running_loop()
        self._timers[number] = loop.call_later(
            self._timeout_s, protocol.end, f"no complete answer within {self._timeout_s:g} s"
        )
        task = asyncio.ensure_future(self._connect(protocol))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, protocol: CompletionProtocol) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(
                lambda: protocol,
                self._address,
                self.target.port,
                ssl=self.target.tls,
                server_hostname=self.target.host if self.target.tls else None,
            )
        except OSError as error:  # its text would name the address
            reason = os.strerror(error.errno) if error.errno else type(error).__name__
            protocol.end(f"cannot connect: {reason}")

    def _ended(self, number: int, outcome: Outcome) -> None:
        del self._running[number]
        self._timers.pop(number).cancel()
        if not self._running and not self._unsent:
            self._over.set()
        if self._on_end is not None:
            self._on_end(outcome)


def _request(target: Target, planned: Planned, prompt: str, id_: str) -> bytes:
    body = (
        f'{{"model":"{target.model}",{prompt},"max_tokens":{planned.max_tokens},"temperature":0,'
        '"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}'
    )
    key = f"Authorization: Bearer {target.api_key}\r\n" if target.api_key else ""
    key += f"x-request-id: {id_}\r\n" if id_ else ""
    head = (
        f"POST {target.path} HTTP/1.1\r\nHost: {target.host}:{target.port}\r\n{key}"
        f"Content-Type: application/json\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return (head + body).encode()


def _address(target: Target) -> str:
    """The address that a name leads to, so that it is not looked up for each request; the name where none answers."""
    try:
        ipaddress.ip_address(target.host)
    except ValueError:
        with contextlib.suppress(OSError), socket.create_connection((target.host, target.port), timeout=10) as reached:
            return str(reached.getpeername()[0])
    return target.host


def _raise_file_limit() -> None:
    """Thousands of streams need thousands of descriptors; take what the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
