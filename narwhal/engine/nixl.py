"""NIXL's handshake, read-only: what an engine tells every peer that asks on its side channel.

The side channel of vLLM's NixlConnector is a ZeroMQ router; one request and one answer of ZMTP 3.0 (rfc.zeromq.org/37)
need no library. The request's form differs between versions of vLLM and a wrong one ends the engine's listener, so only
versions are asked whose form was seen.
"""

import socket
from typing import Any

import msgspec

ASKED = ("0.32.",)
"""How versions of vLLM begin whose handshake is known: `(b"get_meta_msg", pipeline rank, tensor rank)`."""

_GREETING = b"\xff" + b"\x00" * 8 + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\x00") + b"\x00" * 32
_MORE, _LONG, _COMMAND = 1, 2, 4
_READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x03REQ\x08Identity\x00\x00\x00\x00"


class HandshakeError(OSError):
    """The side channel gave no usable answer; the message says why."""


class Handshake(msgspec.Struct, frozen=True):
    """What a peer is told."""

    engine_id: str
    compatibility_hash: str
    blocks: int
    block_tokens: int
    block_bytes: int
    """Bytes of one block over all layers, of one tensor-parallel rank."""
    layout: str
    """Order of layers, blocks, heads and tokens in memory."""
    attention: str
    """Name of the attention backend."""


class _Agent(msgspec.Struct):
    engine_id: str
    num_blocks: int
    block_lens: list[int]
    kv_cache_layout: str
    block_size: int
    attn_backend_name: str


def shake_hands(host: str, port: int, version: str, timeout_s: float = 5.0) -> Handshake:
    """Ask an engine's rank 0 for what it tells its peers. Raises `HandshakeError`."""
    if not version.startswith(ASKED):
        raise HandshakeError(f"the handshake of vLLM {version or 'of an unknown version'} is not known")
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(_GREETING)
            _read(connection, len(_GREETING))
            connection.sendall(bytes([_COMMAND, len(_READY)]) + _READY)
            question = msgspec.msgpack.encode((b"get_meta_msg", 0, 0))
            connection.sendall(bytes([_MORE, 0, 0, len(question)]) + question)
            return parse_answer(_message(connection))
    except HandshakeError:
        raise
    except OSError as error:
        raise HandshakeError(f"the side channel does not answer: {error}") from None


def parse_answer(parts: list[bytes]) -> Handshake:
    """The handshake from a message's parts: an empty one, the payload, the engine's clock."""
    try:
        payload: dict[str, Any] = msgspec.msgpack.decode(parts[1])
        agent = msgspec.msgpack.decode(payload["agent_metadata_bytes"], type=_Agent)
        return Handshake(
            engine_id=agent.engine_id,
            compatibility_hash=str(payload["compatibility_hash"]),
            blocks=agent.num_blocks,
            block_tokens=agent.block_size,
            block_bytes=sum(agent.block_lens),
            layout=agent.kv_cache_layout,
            attention=agent.attn_backend_name,
        )
    except (IndexError, KeyError, TypeError, msgspec.DecodeError) as error:
        raise HandshakeError(f"the side channel's answer is not one that is known: {error}") from None


def _message(connection: socket.socket) -> list[bytes]:
    """The parts of the next message; commands before it are passed over."""
    parts = []
    while True:
        (flags,) = _read(connection, 1)
        size = int.from_bytes(_read(connection, 8 if flags & _LONG else 1), "big")
        if size > 1 << 24:
            raise HandshakeError(f"the side channel answers with {size} bytes")
        body = _read(connection, size)
        if flags & _COMMAND:
            continue
        parts.append(body)
        if not flags & _MORE:
            return parts


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise HandshakeError("the side channel closed the connection")
        data += more
    return data
