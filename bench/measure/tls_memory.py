"""How much memory a stream takes in the router, in clear text and over TLS.

    python bench/measure/tls_memory.py [--streams 5000] [--prompt-bytes 8000]

This process is the engines and the clients; the router is one of its own. Every stream gets a token each few seconds.
Prints the growth of the router's proportional set size (PSS) a stream, once all have had `TOKENS` tokens.
"""

import argparse
import asyncio
import json
import re
import resource
import ssl
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.router.certificates import Pair, authority, issue
from tests.router.harness import HANDOFF, METRICS, STREAM_HEAD, Router, post, start_router, token, write_fleet

TOKENS = 5
INTERVAL_S = 4.0
AT_A_TIME = 20
DECODE_ENGINES = 4


def answer(document: object, kind: str = "application/json") -> bytes:
    data = document.encode() if isinstance(document, str) else json.dumps(document).encode()
    return f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


class Engine(asyncio.Protocol):
    """Answers looks and leg 1 at once; leg 2 is a stream without end."""

    def connection_made(self, transport: Any) -> None:
        self.transport, self.buffer, self.sent = transport, b"", 0

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, mark, body = self.buffer.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if not mark or (length and len(body) < int(length[1])):
            return
        self.buffer = b""
        if head.startswith(b"GET /metrics"):
            self.transport.write(answer(METRICS, "text/plain"))
        elif head.startswith(b"GET"):
            self.transport.write(answer({}))
        elif b'"do_remote_decode":true' in body:
            self.transport.write(answer({"usage": {"prompt_tokens": 7}, "kv_transfer_params": HANDOFF}))
        else:
            self.transport.write(STREAM_HEAD)
            self.tick()

    def tick(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(token(" t"))
            asyncio.get_running_loop().call_later(INTERVAL_S, self.tick)


class Client(asyncio.Protocol):
    """One stream; counts its tokens."""

    def __init__(self, request: bytes) -> None:
        self.request, self.tokens, self.first = request, 0, asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.tokens += data.count(b"text_completion")
        if not self.first.done():
            if data.startswith(b"HTTP/1.1 200"):
                self.first.set_result(None)
            else:
                self.first.set_exception(OSError(data[:300]))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.first.done():
            self.first.set_exception(OSError("closed before the first token"))


def pss_bytes(pid: int) -> int:
    found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


async def grown(router: Router, context: ssl.SSLContext | None, streams: int, request: bytes) -> tuple[float, float]:
    """Bytes a stream, and seconds to open one."""
    loop = asyncio.get_running_loop()
    gate = asyncio.Semaphore(AT_A_TIME)
    clients: list[Client] = []

    async def open_one() -> None:
        async with gate:
            client = Client(request)
            name = "localhost" if context else None
            await loop.create_connection(lambda: client, "127.0.0.1", router.port, ssl=context, server_hostname=name)
            await client.first
            clients.append(client)

    before, began = pss_bytes(router.process.pid), time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(open_one())
    opened_s = time.monotonic() - began
    while min(client.tokens for client in clients) < TOKENS:  # noqa: ASYNC110 - a look now and then costs least
        await asyncio.sleep(0.5)
    after = pss_bytes(router.process.pid)
    for client in clients:
        client.transport.abort()
    return (after - before) / streams, opened_s / streams


async def measure(streams: int, prompt_bytes: int) -> None:
    loop = asyncio.get_running_loop()
    engines = [await loop.create_server(Engine, "127.0.0.1", 0, backlog=4096) for _ in range(1 + DECODE_ENGINES)]
    ports = [engine.sockets[0].getsockname()[1] for engine in engines]
    request = post({"prompt": "x" * prompt_bytes, "max_tokens": 1000, "stream": True})
    for name in ("clear text", "TLS"):
        with tempfile.TemporaryDirectory() as folder:
            ca = authority(Path(folder))
            served = issue(ca, Pair(Path(folder) / "served.pem", Path(folder) / "served.key"))
            context = ssl.create_default_context(cafile=str(ca.cert)) if name == "TLS" else None
            more = f"\n  max_num_batched_tokens: {2 * streams}"
            fleet = write_fleet(
                Path(folder), ports, seqs=2 * streams, prefill=1, engine_more=more, tls=served.yaml if context else ""
            )
            router = start_router(Path(folder), *fleet)
            try:
                while not await asyncio.to_thread(router.ready):  # noqa: ASYNC110 - another process gets ready
                    await asyncio.sleep(0.1)
                size, opened_s = await grown(router, context, streams, request)
                print(f"{name}: {size / 1024:.1f} KiB a stream, {opened_s * 1000:.2f} ms to open one", flush=True)
            finally:
                router.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=5000)
    parser.add_argument("--prompt-bytes", type=int, default=8000)
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(measure(arguments.streams, arguments.prompt_bytes))


if __name__ == "__main__":
    main()
