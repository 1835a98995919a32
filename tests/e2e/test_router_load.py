"""Two hundred streams at a time for a while: none fails, and the router's memory stays flat.

`NARWHAL_LOAD_SECONDS` says for how long; the suite's default is short.
"""

import asyncio
import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.routers import fleet_of
from tests.router.harness import PATIENCE_S, eventually, post

STREAMS = 200
TOKENS = 20
WARM_UP = 0.25
"""Share of the time after which memory is compared."""


async def one_stream(port: int, number: int, outcomes: Counter[str]) -> None:
    body = {"model": "m", "prompt": f"{number} " + "whale " * 20, "max_tokens": TOKENS, "stream": True}
    body |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(post(body, extra="Connection: close\r\n"))
        answer = await asyncio.wait_for(reader.read(-1), 4 * PATIENCE_S)
    finally:
        writer.close()
    frames = [line[6:] for line in answer.split(b"\n") if line.startswith(b"data: ")]
    whole = answer.startswith(b"HTTP/1.1 200 ") and frames[-1:] == [b"[DONE]"] and answer.endswith(b"\r\n0\r\n\r\n")
    tokens = json.loads(frames[-2])["usage"]["completion_tokens"] if whole else 0
    outcomes["served" if tokens == TOKENS else answer[-300:].decode("latin1")] += 1


async def load(port: int, seconds: float, outcomes: Counter[str]) -> None:
    """Keep `STREAMS` streams running until the time is over, and let the last ones end."""
    until_t = time.monotonic() + seconds

    async def client(number: int) -> None:
        while time.monotonic() < until_t:
            await one_stream(port, number, outcomes)

    await asyncio.gather(*(client(number) for number in range(STREAMS)))


@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_two_hundred_streams_at_a_time(tmp_path: Path) -> None:
    seconds = float(os.environ.get("NARWHAL_LOAD_SECONDS", "15"))
    with fleet_of(tmp_path, 4, speed=20.0) as fleet:
        router, outcomes = fleet.router, Counter[str]()
        asyncio.run(load(router.port, seconds * WARM_UP, outcomes))
        warm_bytes = router.rss_bytes()
        asyncio.run(load(router.port, seconds * (1 - WARM_UP), outcomes))
        eventually(lambda: router.state()["queue"]["requests"] == 0, "an empty queue")
        end_bytes = router.rss_bytes()
        served = outcomes.pop("served")
        print(f"{served} streams, {warm_bytes >> 20} MB warm, {end_bytes >> 20} MB at the end")
        assert outcomes == Counter()
        assert served >= 2 * STREAMS
        assert end_bytes < 1.25 * warm_bytes
        counts = router.state()["counts"]
        assert counts["served"] == counts["offered"] == served
        assert counts["failed"] == counts["cut"] == counts["refused"] == 0
        engines = router.state()["engines"]
        eventually(lambda: all(e["residents"] == 0 for e in router.state()["engines"]), "empty engines")
        assert {engine["state"] for engine in engines} == {"live"}
