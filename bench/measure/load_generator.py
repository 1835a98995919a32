"""What the load generator costs: 2,000 streams at 20 tokens a second each, from a server that only writes.

    python bench/measure/load_generator.py [--streams 2000] [--seconds 10]

Prints one JSON line. The generator is fit for a load while its share of a core is well below one; the gap it measures
is the server's, 50 ms when that has a core to itself.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection

import uvloop

from narwhal.measure import Load, Outcome, Planned, Target

_GAP_S = 0.05
_BUCKETS = 10
"""The streams are served in turn, a tenth of them every 5 ms."""
_EVENT = (
    b'data: {"id":"cmpl-0","object":"text_completion","created":1,"model":"simulated","choices":'
    b'[{"index":0,"text":" ut","logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'
)
_END = b"data: [DONE]\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n" % len(data) + data + b"\r\n"


class _Stream(asyncio.Protocol):
    """Answers whatever it is asked with `tokens` tokens, when its turn comes."""

    def __init__(self, turns: list[set["_Stream"]], tokens: int) -> None:
        self._turns = turns
        self._left = tokens
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if b"\r\n\r\n" in self._head:
            return
        self._head += data
        if b"\r\n\r\n" in self._head:
            self._transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")  # type: ignore[attr-defined]
            min(self._turns, key=len).add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        for turn in self._turns:
            turn.discard(self)

    def step(self) -> None:
        self._left -= 1
        if self._left:
            self._transport.write(_chunk(_EVENT))  # type: ignore[attr-defined]
        else:
            self._transport.write(_chunk(_EVENT + _END) + b"0\r\n\r\n")  # type: ignore[attr-defined]
            self.connection_lost(None)


async def _serve(port: Connection, tokens: int) -> None:
    turns: list[set[_Stream]] = [set() for _ in range(_BUCKETS)]
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Stream(turns, tokens), "127.0.0.1", 0, backlog=4096)
    port.send(server.sockets[0].getsockname()[1])
    step_t = time.monotonic()
    while True:
        for turn in turns:
            for stream in list(turn):
                stream.step()
            step_t += _GAP_S / _BUCKETS
            await asyncio.sleep(max(step_t - time.monotonic(), 0))


def _server(port: Connection, tokens: int) -> None:
    uvloop.run(_serve(port, tokens))


async def _measure(port: int, streams: int, tokens: int) -> tuple[list[Outcome], float, float]:
    schedule = [Planned(0.002 * number, 500, tokens, "bench") for number in range(streams)]
    cpu_s, wall_t = time.process_time(), time.monotonic()
    outcomes = await Load(Target("127.0.0.1", port, "simulated"), schedule).run()
    return outcomes, time.process_time() - cpu_s, time.monotonic() - wall_t


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    tokens = round(options.seconds / _GAP_S)
    mine, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=_server, args=(theirs, tokens), daemon=True)
    server.start()
    outcomes, cpu_s, wall_s = uvloop.run(_measure(mine.recv(), options.streams, tokens))
    server.terminate()
    gaps = [outcome.tpot_s for outcome in outcomes if outcome.tpot_s is not None]
    total = sum(outcome.tokens for outcome in outcomes)
    print(
        json.dumps(
            {
                "streams": options.streams,
                "served": sum(outcome.result == "served" for outcome in outcomes),
                "tokens": total,
                "cpu_share": round(cpu_s / wall_s, 3),
                "cpu_us_per_token": round(cpu_s / total * 1e6, 2),
                "tpot_ms_median": round(statistics.median(gaps) * 1e3, 2),
                "lag_ms_max": round(max(outcome.lag_s for outcome in outcomes) * 1e3, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
