"""The side channel: engines fetch KV from each other over TCP.

Each direction of a pair has one connection, opened by the consumer and kept. A message is its length (4 bytes, big
endian) and a msgpack object tagged `op`. The consumer greets first, and both learn the other's engine id and KV
layout. Then it asks for blocks and says when it has them (`free`), or that it still waits for its turn (`renew`).

The answer to `fetch` holds `BYTES_PER_BLOCK` real bytes for each block: its content and filling. The rest of the KV
is only timed: an answer leaves when `transfer.t0_s + bytes / bandwidth` seconds have passed since the channel was
free, as if all of it had moved. `nixl_bytes_transferred` counts these timed bytes.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, cast

import msgspec

from narwhal.engine.simulated.blocks import CONTENT_BYTES

BYTES_PER_BLOCK = 64
_MAX_MESSAGE_BYTES = 64 << 20


class Hello(msgspec.Struct, tag_field="op", tag="hello"):
    """Who speaks, and how its KV lies in memory. Engines with another layout do not understand each other."""

    engine_id: str
    layout: str


class Fetch(msgspec.Struct, tag_field="op", tag="fetch"):
    """Send these blocks, please."""

    number: int
    blocks: list[int]


class Blocks(msgspec.Struct, tag_field="op", tag="blocks"):
    """Contents of the blocks asked for, `BYTES_PER_BLOCK` each."""

    number: int
    data: bytes


class Free(msgspec.Struct, tag_field="op", tag="free"):
    """The blocks of this request are not needed any more."""

    request_id: str


class Renew(msgspec.Struct, tag_field="op", tag="renew"):
    """These requests still wait for their turn: start their lease anew."""

    request_ids: list[str]


Message = Hello | Fetch | Blocks | Free | Renew
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


class PeerError(Exception):
    """KV that cannot be had: the peer is gone, is another engine by now, or has another layout."""


def pack(contents: list[bytes]) -> bytes:
    """The bytes that stand for blocks with these contents."""
    filling = bytes(BYTES_PER_BLOCK - CONTENT_BYTES)
    return b"".join([content + filling for content in contents])


def unpack(data: bytes) -> list[bytes]:
    """The contents in what `pack` made."""
    return [data[start : start + CONTENT_BYTES] for start in range(0, len(data), BYTES_PER_BLOCK)]


class Channel(asyncio.Protocol):
    """One connection: cuts the stream into messages."""

    def __init__(self, on_message: "Callable[[Channel, Message], None]", on_lost: "Callable[[Channel], None]") -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self.peer_id = ""
        """Engine id of the other side, once it greeted."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owner."""
        self._transport = None
        self._on_lost(self)

    def data_received(self, data: bytes) -> None:
        """Hand on whole messages; whoever sends anything else is cut off."""
        self._buffer += data
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4])
            if size > _MAX_MESSAGE_BYTES:
                return self.close()
            if len(self._buffer) < 4 + size:
                return None
            body = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            try:
                message = _decode(body)
            except msgspec.DecodeError:
                return self.close()
            self._on_message(self, message)
        return None

    def send(self, message: Message) -> None:
        """Send a message; nothing happens on a closed channel."""
        if self._transport is not None:
            body = _encode(message)
            self._transport.write(len(body).to_bytes(4) + body)

    def close(self) -> None:
        """Break the connection."""
        if self._transport is not None:
            self._transport.abort()


class Store(Protocol):
    """What a producer's side channel needs of its engine."""

    def read_blocks(self, blocks: list[int]) -> list[bytes]:
        """Contents of blocks, as they are now. Raises `PeerError` for an unknown block."""

    def transfer_s(self, block_count: int) -> float:
        """Seconds that so many blocks take on the wire."""

    def release_pin(self, request_id: str) -> None:
        """Free what was kept for a request."""

    def renew_pin(self, request_id: str) -> None:
        """Start a lease anew."""

    def admits(self, engine_id: str) -> bool:
        """Whether a peer may talk to this engine now."""

    def hung(self) -> bool:
        """Whether the engine answers nobody."""


class Producer:
    """The serving side: sends blocks to whoever asks, one transfer after the other."""

    def __init__(self, engine_id: str, layout: str, store: Store) -> None:
        self._hello = Hello(engine_id, layout)
        self._store = store
        self._free_t = 0.0
        self._server: asyncio.Server | None = None
        self._channels: set[Channel] = set()

    async def listen(self, host: str, port: int) -> int:
        """Listen, and return the port. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._channel, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    def drop(self, engine_id: str | None) -> None:
        """Break the connections of a peer; of all for None."""
        for channel in list(self._channels):
            if engine_id in (None, channel.peer_id):
                channel.close()

    def close(self) -> None:
        """Stop listening, and break all connections."""
        if self._server is not None:
            self._server.close()
        self.drop(None)

    def _channel(self) -> Channel:
        channel = Channel(self._received, self._channels.discard)
        self._channels.add(channel)
        return channel

    def _received(self, channel: Channel, message: Message) -> None:
        if self._store.hung():
            return None
        if isinstance(message, Hello):
            channel.peer_id = message.engine_id
            if not self._store.admits(message.engine_id):
                return channel.close()
            channel.send(self._hello)
        elif isinstance(message, Fetch):
            loop = asyncio.get_running_loop()
            self._free_t = max(loop.time(), self._free_t) + self._store.transfer_s(len(message.blocks))
            loop.call_at(self._free_t, self._send, channel, message)
        elif isinstance(message, Free):
            self._store.release_pin(message.request_id)
        elif isinstance(message, Renew):
            for request_id in message.request_ids:
                self._store.renew_pin(request_id)
        return None

    def _send(self, channel: Channel, fetch: Fetch) -> None:
        if self._store.hung():
            return
        try:
            contents = self._store.read_blocks(fetch.blocks)
        except PeerError:
            channel.close()
            return
        channel.send(Blocks(fetch.number, pack(contents)))


class Consumer:
    """The asking side: a connection for each peer address, opened when first needed."""

    def __init__(self, engine_id: str, layout: str, handshake_timeout_s: float) -> None:
        self._hello = Hello(engine_id, layout)
        self._handshake_timeout_s = handshake_timeout_s
        self._links: dict[tuple[str, int], _Link] = {}
        self._met: set[tuple[str, int]] = set()

    async def fetch(self, address: tuple[str, int], engine_id: str, blocks: list[int]) -> list[bytes]:
        """The contents of a peer's blocks. Hangs while the peer hangs. Raises `PeerError`."""
        link = await self.meet(address)
        if link.channel.peer_id != engine_id:
            raise PeerError(f"the engine at {address[0]}:{address[1]} is not {engine_id} any more")
        return unpack(await link.fetch(blocks))

    async def meet(self, address: tuple[str, int]) -> "_Link":
        """The link to a peer, after its greeting. Raises `PeerError`: at once when it was met before and is gone."""
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = _Link(address, self._hello, self._forget)
            link.start()
        try:
            await asyncio.wait_for(asyncio.shield(link.ready), self._handshake_timeout_s)
        except (PeerError, TimeoutError) as error:
            self._forget(link)
            if address not in self._met and isinstance(error, PeerError) and not link.greeted:
                await asyncio.sleep(self._handshake_timeout_s)  # a stranger is tried for that long
            raise PeerError(f"no handshake with {address[0]}:{address[1]}: {error or 'timeout'}") from None
        self._met.add(address)
        return link

    def tell(self, address: tuple[str, int], message: Free | Renew) -> bool:
        """Send a peer a word when there is a link; False when there is none."""
        link = self._links.get(address)
        if link is None or not link.greeted:
            return False
        link.channel.send(message)
        return True

    def drop(self, engine_id: str | None) -> None:
        """Break the connections with a peer; with all for None."""
        for link in list(self._links.values()):
            if engine_id in (None, link.channel.peer_id):
                link.channel.close()

    def _forget(self, link: "_Link") -> None:
        if self._links.get(link.address) is link:
            del self._links[link.address]
        link.channel.close()


class _Link:
    """A consumer's connection with one peer, and the fetches that run on it."""

    def __init__(self, address: tuple[str, int], hello: Hello, on_lost: "Callable[[_Link], None]") -> None:
        self.address = address
        self.channel = Channel(self._received, self._lost)
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.ready.add_done_callback(_seen)
        self.greeted = False
        self._hello = hello
        self._on_lost = on_lost
        self._number = 0
        self._fetches: dict[int, asyncio.Future[bytes]] = {}
        self._broken: PeerError | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect and greet."""
        self._task = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.channel, *self.address)
        except OSError as error:
            self._fail(PeerError(error.strerror or str(error)))
            return
        self.channel.send(self._hello)

    async def fetch(self, blocks: list[int]) -> bytes:
        """The bytes of blocks. Raises `PeerError` when the connection breaks, or broke before."""
        if self._broken is not None:  # since the greeting: nobody would ever answer
            raise self._broken
        self._number = number = self._number + 1
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._fetches[number] = future
        try:
            self.channel.send(Fetch(number, blocks))
            return await future
        finally:
            self._fetches.pop(number, None)

    def _received(self, channel: Channel, message: Message) -> None:
        if isinstance(message, Hello):
            channel.peer_id = message.engine_id
            self.greeted = True
            if message.layout != self._hello.layout:
                self._fail(PeerError("its KV has another layout"))
            elif not self.ready.done():
                self.ready.set_result(None)
        elif isinstance(message, Blocks):
            future = self._fetches.get(message.number)
            if future is not None and not future.done():
                future.set_result(message.data)

    def _lost(self, _: Channel) -> None:
        self._fail(PeerError("the connection broke"))
        self._on_lost(self)

    def _fail(self, error: PeerError) -> None:
        self._broken = error
        if not self.ready.done():
            self.ready.set_exception(error)
        for future in self._fetches.values():
            if not future.done():
                future.set_exception(error)


def _seen(future: "asyncio.Future[Any]") -> None:
    """Mark a failure as seen: whoever waits hears of it, and nobody need wait."""
    if not future.cancelled():
        future.exception()
