"""A hundred connections for every stream that the engines have a seat for: refusals, and nothing else goes wrong."""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.routers import fleet_of
from tests.router.harness import PATIENCE_S, eventually, post

SEATS = 2
CONNECTIONS = 100 * SEATS
REQUESTS = 8
"""Of each connection, one after the other."""
TOKENS = 40
MEMORY = 100 << 20
"""What 200 connections may add, in bytes: some thousand requests that are kept would take more."""
BODY = {"model": "m", "prompt": "whale " * 20, "max_tokens": TOKENS, "stream": True, "ignore_eos": True}


async def client(port: int, ends: Counter[str], refusals: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for _ in range(REQUESTS):
            sent_t = time.monotonic()
            writer.write(post(BODY))
            start = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 4 * PATIENCE_S)).decode()
            status, *lines = start.strip().split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines)
            if status.split()[1] == "200":
                rest = await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), 4 * PATIENCE_S)
                ends["served" if rest.count(b"data: ") > TOKENS and b"[DONE]" in rest else "broken"] += 1
                continue
            refusals.append(time.monotonic() - sent_t)
            error = json.loads(await reader.readexactly(int(headers["content-length"])))["error"]
            told = int(headers.get("retry-after", "0")) >= 1
            ends["refused" if status.split()[1] in ("429", "503") and told else f"{status} {error}"] += 1
    finally:
        writer.close()


async def load(port: int, connections: int, ends: Counter[str], refusals: list[float]) -> None:
    await asyncio.gather(*(client(port, ends, refusals) for _ in range(connections)))


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_a_hundred_times_the_load_gives_refusals_and_no_failures(tmp_path: Path) -> None:
    options = {"serving": "admission: predictive, shutdown_s: 5", "slo": "ttft_s: 2.0, tpot_s: 0.5", "seqs": SEATS}
    with fleet_of(tmp_path, 2, speed=2.0, **options) as fleet:
        router, ends, refusals = fleet.router, Counter[str](), list[float]()
        asyncio.run(load(router.port, 1, ends, refusals))
        assert ends == {"served": REQUESTS}, "one at a time, all are served"
        before = router.rss_bytes()
        began_t = time.monotonic()
        asyncio.run(load(router.port, CONNECTIONS, ends, refusals))
        seconds, grown = time.monotonic() - began_t, router.rss_bytes() - before
        ends["served"] -= REQUESTS
        refusals.sort()
        p50, p99 = (1000 * refusals[int(len(refusals) * part)] for part in (0.5, 0.99))
        print(f"{dict(ends)} in {seconds:.1f} s; {grown >> 20} MB more; refused within {p50:.0f} ms, p99 {p99:.0f} ms")
        assert set(ends) == {"served", "refused"}
        assert sum(ends.values()) == CONNECTIONS * REQUESTS
        assert ends["served"] >= SEATS
        assert ends["refused"] > ends["served"]
        assert grown < MEMORY
        eventually(lambda: all(e["residents"] == 0 for e in router.state()["engines"]), "empty engines")
        counts = router.state()["counts"]
        assert (counts["failed"], counts["cut"], counts["cancelled"]) == (0, 0, 0)
        assert counts["served"] == ends["served"] + REQUESTS
        assert counts["refused"] == ends["refused"]
