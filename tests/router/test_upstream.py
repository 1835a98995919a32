"""One connection to an engine: what counts as an answer, what does not, and when a connection is used again."""

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop

from narwhal.router.upstream import MAX_HEAD, Pool, Upstream
from tests.router.wires import Clock, Transport

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"


@dataclass
class Asker:
    """An owner that remembers what it is told."""

    relay: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)
    status: int = 0
    body: bytes = b""
    relayed: bytes = b""
    cause: str = ""

    def answer_head(self, up: Upstream, status: int, length: int) -> bool:
        self.status = status
        return self.relay

    def answer_bytes(self, up: Upstream, data: bytes) -> None:
        self.relayed += data

    def answer_done(self, up: Upstream, body: bytes) -> None:
        self.body = body
        self.done.set()

    def answer_failed(self, up: Upstream, cause: str, message: str) -> None:
        assert message
        self.cause = cause
        self.done.set()

    def replaced(self, old: Upstream, new: Upstream) -> None:
        assert old is not new


@dataclass
class Scripted:
    """A server that writes the given pieces for each request of a connection, then closes or keeps it."""

    pieces: list[bytes]
    close: bool = False
    reset: bool = False
    requests: int = 0
    connections: int = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.requests += 1
                for piece in self.pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if self.reset:
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    writer.transport.abort()
                    return
                if self.close:
                    writer.close()
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


def ask(server: Scripted, use: Callable[[Pool], Any], run_loop: Callable[[Any], Any] = asyncio.run) -> Any:
    """Run `use` with a pool of connections to the server."""

    async def run() -> Any:
        listening = await asyncio.start_server(server, "127.0.0.1", 0)
        pool = Pool(asyncio.get_running_loop(), "127.0.0.1", listening.sockets[0].getsockname()[1])
        try:
            return await asyncio.wait_for(use(pool), 60)
        finally:
            pool.close()
            listening.close()

    return run_loop(run())


async def once(pool: Pool, **options: Any) -> Asker:
    asker = Asker(**options)
    pool.send(REQUEST, asker)  # type: ignore[arg-type]
    await asker.done.wait()
    return asker


CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: t\r\n\r\n"
GOOD = {
    "length": OK + b"Content-Length: 5\r\n\r\nabcde",
    "chunks": CHUNKED,
    "no space": OK + b"content-length:5\r\n\r\nabcde",
    "continue first": b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 5\r\n\r\nabcde",
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_answer_is_read_however_it_is_split_and_its_connection_is_kept(name: str, size: int) -> None:
    server = Scripted([GOOD[name][n : n + size] for n in range(0, len(GOOD[name]), size)])

    async def twice(pool: Pool) -> list[Asker]:
        return [await once(pool), await once(pool)]

    for asker in ask(server, twice):
        assert (asker.status, asker.body, asker.cause) == (200, b"abcde", "")
    assert (server.requests, server.connections) == (2, 1)


def test_a_relayed_body_keeps_its_framing() -> None:
    asker = ask(Scripted([CHUNKED]), lambda pool: once(pool, relay=True))
    assert asker.relayed == CHUNKED.partition(b"\r\n\r\n")[2]


def test_a_body_may_end_with_its_connection() -> None:
    asker = ask(Scripted([OK + b"\r\nabcde"], close=True), once)
    assert (asker.body, asker.cause) == (b"abcde", "")


@pytest.mark.parametrize(
    "pieces",
    [
        [OK + b"Content-Length: 5\r\n\r\nab"],
        [OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nab"],
        [OK],
        [OK + b"Content-Length: -5\r\n\r\nabcde"],
        [OK + b"Content-Length: 5_0\r\n\r\nabcde"],
        [OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"],
        [b"HTTP/1.1 2OO OK\r\n\r\n"],
        [b"SSH-2.0-OpenSSH\r\n\r\n"],
        [OK + b"x: " + b"y" * MAX_HEAD + b"\r\n"],
    ],
)
def test_what_is_no_whole_answer_has_failed(pieces: list[bytes]) -> None:
    assert ask(Scripted(pieces, close=True), once).cause == "stream"


def test_a_reset_does_not_end_a_body() -> None:
    asker = ask(Scripted([OK + b"\r\nab"], reset=True), lambda pool: once(pool, relay=True))
    assert asker.cause in ("stream", "connection")  # the reset may overtake the bytes


@pytest.mark.parametrize("surplus", [OK, b"x"])
def test_a_connection_with_bytes_nobody_asked_for_is_not_used_again(surplus: bytes) -> None:
    server = Scripted([GOOD["length"] + surplus])

    async def twice(pool: Pool) -> None:
        assert (await once(pool)).body == b"abcde"
        assert (await once(pool)).body == b"abcde"

    ask(server, twice)
    assert server.connections == 2


def test_a_connection_that_was_made_in_time_is_kept_though_the_loop_was_late(monkeypatch: pytest.MonkeyPatch) -> None:
    server, made = Scripted([GOOD["length"]]), Upstream.connection_made

    def slowly(self: Upstream, transport: asyncio.BaseTransport) -> None:
        made(self, transport)
        time.sleep(0.3)  # the loop stands still: its timers are due before `open` goes on

    monkeypatch.setattr(Upstream, "connection_made", slowly)
    monkeypatch.setattr("narwhal.router.upstream.CONNECT_S", 0.2)

    async def twice(pool: Pool) -> None:
        assert (await once(pool)).body == b"abcde"
        assert (await once(pool)).body == b"abcde"

    ask(server, twice, uvloop.run)
    assert (server.requests, server.connections) == (2, 1)


def test_nobody_listens() -> None:
    async def nobody(pool: Pool) -> Asker:
        empty = Pool(pool.loop, "127.0.0.1", 1)
        asker = Asker()
        up = empty.send(REQUEST, asker)  # type: ignore[arg-type]
        await asker.done.wait()
        assert up.refused
        return asker

    assert ask(Scripted([]), nobody).cause == "connection"


def test_a_handoff_that_is_too_old_when_the_engine_is_reached_is_not_sent() -> None:
    server = Scripted([GOOD["length"]])

    async def late(pool: Pool) -> Asker:
        asker = Asker()
        pool.send(REQUEST, asker, once=True, until=time.monotonic() - 1)  # type: ignore[arg-type]
        await asker.done.wait()
        await once(pool)  # the server has seen all that was sent before
        return asker

    assert ask(server, late).cause == "handoff"
    assert server.requests == 1


def test_a_closed_pool_closes_its_connections() -> None:
    async def closed(pool: Pool) -> int:
        await once(pool)
        assert len(pool.open) == 1
        pool.close()
        while pool.open:
            await asyncio.sleep(0)
        return len(pool.idle)

    assert ask(Scripted([GOOD["length"]]), closed) == 0


def test_an_aborted_answer_tells_its_owner_nothing() -> None:
    async def aborted(pool: Pool) -> Asker:
        asker = Asker()
        up = pool.send(REQUEST, asker)  # type: ignore[arg-type]
        while up.status == 0:
            await asyncio.sleep(0.001)
        up.abort()
        while pool.open:
            await asyncio.sleep(0)
        return asker

    asker = ask(Scripted([OK + b"Content-Length: 5\r\n\r\nab"]), aborted)
    assert not asker.done.is_set()


def test_an_event_that_comes_alone_goes_to_the_sink_and_all_else_to_the_owner() -> None:
    asker, sunk = Asker(relay=True), list[bytes]()
    pool = Pool(Clock(), "127.0.0.1", 1)  # type: ignore[arg-type]
    up = Upstream(pool)
    up.transport = Transport()
    up.begin(REQUEST, asker, again=False)
    event, error = chunk(b'data: {"a": 1}\n\n'), chunk(b'data: {"error": {}}\n\n')
    up.data_received(OK + b"transfer-encoding: chunked\r\n\r\n" + event)
    up.sink = sunk.append
    for read in (event, event + event, event[:9], event[9:], chunk(b"data: part"), error, event):
        up.data_received(read)
    assert sunk == [event, event]
    assert asker.relayed == event + event + event + event + chunk(b"data: part") + error
    assert up.tracker is not None
    assert up.tracker.frames == 8
    assert up.tracker.tail == (chunk(b"data: part"), error, event)
    up.data_received(b"0\r\n\r\n")
    assert asker.done.is_set()
    assert up.sink is None


def test_nothing_goes_to_the_sink_of_an_answer_that_was_given_up() -> None:
    asker, sunk = Asker(relay=True), list[bytes]()
    up = Upstream(Pool(Clock(), "127.0.0.1", 1))  # type: ignore[arg-type]
    up.transport = Transport()
    up.begin(REQUEST, asker, again=False)
    event = chunk(b'data: {"a": 1}\n\n')
    up.data_received(OK + b"transfer-encoding: chunked\r\n\r\n" + event)
    up.sink = sunk.append
    up.abort()
    up.data_received(event)
    assert sunk == []
    assert asker.relayed == event


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)
