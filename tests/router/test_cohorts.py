"""What sidecars attest decides which engines pair; one that is silent, or speaks for another, parts nobody."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from narwhal.dev.ports import free_run
from tests.router.harness import FakeEngine, Router, eventually, routing

BODY = {"prompt": "x", "max_tokens": 3}


class Sidecar:
    """Attests what a test says."""

    def __init__(self, port: int, engine: str, compatibility_hash: str) -> None:
        document = {
            "engine": engine,
            "launch_digest": "sha256:" + "0" * 64,
            "compatibility_hash": compatibility_hash,
            "cache": {"dtype": "auto", "block_tokens": 16, "bytes_per_token": 1000, "layout": "HND"},
            "unknown": {},
        }
        data = json.dumps(document).encode()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                """Be quiet."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def engines() -> Iterator[list[FakeEngine]]:
    made = [FakeEngine() for _ in range(5)]
    yield made
    for engine in made:
        engine.close()


def told(router: Router) -> dict[str, tuple[str, bool]]:
    return {engine["id"]: (engine["cohort"], engine["lone"]) for engine in router.state()["engines"]}


def test_legs_pair_by_what_sidecars_attest(tmp_path: Path, engines: list[FakeEngine]) -> None:
    base = free_run(5)
    says = {0: ("local/0", "a"), 1: ("local/1", "a"), 2: ("local/0", "b"), 4: ("local/4", "b")}  # 3 is silent
    sidecars = [Sidecar(base + n, engine, digest) for n, (engine, digest) in says.items()]
    try:
        more = f"\n  attest_port_base: {base}"
        with routing(tmp_path, engines, prefill=2, engine_more=more) as router:
            eventually(lambda: told(router)["local/4"][1], "a lone engine")
            eventually(lambda: len({cohort for cohort, _ in told(router).values()}) == 2, "two cohorts")
            cohorts = told(router)
            assert len({cohorts[f"local/{n}"][0] for n in range(4)}) == 1
            assert [name for name, (_, lone) in cohorts.items() if lone] == ["local/4"]
            for engine in engines:
                engine.asked.clear()
            for _ in range(12):
                assert router.send("POST", "/v1/completions", BODY)[0] == 200
            assert {asked.leg for asked in engines[4].generations} <= {0}
            assert {asked.leg for engine in engines[2:4] for asked in engine.generations} == {2}
            page = router.send("GET", "/metrics", admin=True)[2].decode()
            assert "narwhal_cohorts 2.0" in page
            assert 'narwhal_engine_lone{engine="local/4"} 1.0' in page
    finally:
        for sidecar in sidecars:
            sidecar.close()
