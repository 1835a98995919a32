"""What the load generator costs: 2,000 streams at 20 tokens a second each, from a server that only writes.

    python bench/measure/load_generator.py [--streams 2000] [--seconds 10] [--out FOLDER]

Measures it as `narwhal bench` measures a point, and prints one JSON line from that point's evidence. The generator is
fit for a load while its share of a core is well below one and its schedule is kept (lag p99 below 20 ms); the gap it
measures is the server's, 50 ms when that has a core to itself.
"""

import argparse
import asyncio
import json
import multiprocessing
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

from narwhal.fleet.model import Point, Points, RateTraffic, Slo
from narwhal.measure import Plan, Ran, Target, run_points

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


def _points(streams: int, seconds: float, tokens: int) -> Points:
    """As many requests a second as keep `streams` open, each for as long as the warm-up."""
    rate_rps = streams / seconds
    traffic = RateTraffic(kind="rate", arrivals="constant", rate_rps=rate_rps, prompt_tokens=500, output_tokens=tokens)
    point = Point(name="null", traffic=traffic, warmup_s=seconds, duration_s=seconds, drain_s=60)
    return Points(points=[point], slo=Slo(ttft_s=1.0, tpot_s=1.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--out", type=Path, help="keep the evidence here")
    options = parser.parse_args()
    tokens = round(options.seconds / _GAP_S)
    mine, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=_server, args=(theirs, tokens), daemon=True)
    server.start()
    target = Target("127.0.0.1", mine.recv(), "simulated")
    points = _points(options.streams, options.seconds, tokens)
    ran = Ran()
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan("load-generator", points, Path(), target, options.out or Path(folder), admin=None, again=True)
        uvloop.run(run_points(plan, ran, lambda line: print(line, file=sys.stderr)))
    server.terminate()
    evidence = ran.measured[0].evidence
    client, figures = evidence.client, evidence.figures
    print(
        json.dumps(
            {
                "streams_max": client.streams_max,
                "served": figures.served,
                "offered": figures.offered,
                "tokens_per_s": round(client.tokens_per_s),
                "cpu_share": round(client.cpu_share, 3),
                "cpu_us_per_token": round(client.cpu_share / client.tokens_per_s * 1e6, 2),
                "tpot_ms_median": round(figures.tpot_s.p50 * 1e3, 2) if figures.tpot_s else None,
                "lag_ms_p99": round(client.lag_p99_s * 1e3, 1),
                "lag_ms_max": round(client.lag_max_s * 1e3, 1),
                "load_1m": evidence.machine.load_1m,
                "verdict": [
                    f"{check.name} {check.outcome}" for check in evidence.verdict.checks if check.outcome != "skipped"
                ],
            }
        )
    )


if __name__ == "__main__":
    main()
