"""What the router makes of engines that fail, with engines that fail exactly as a test says."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from narwhal.control.commands import TryPair
from narwhal.engine.dialect import VllmDialect
from narwhal.preflight import LegError
from narwhal.profiling import EngineError, EngineUrl
from narwhal.router import probes
from narwhal.router.canary import Armed, arm
from narwhal.router.probes import RouterLateError, get
from narwhal.router.tries import _failed
from narwhal.router.upstream import Pool
from tests.router.harness import METRICS, Asked, FakeEngine, Router, eventually, reply, routing

BODY = {"prompt": "a", "max_tokens": 3}
BROKEN = {"error": {"message": "broken", "type": "InternalServerError", "param": None, "code": 500}}


def ready(router: Router) -> tuple[int, Any]:
    status, _, body = router.send("GET", "/ready", admin=True)
    return status, json.loads(body)


def metric(router: Router, name: str) -> str:
    lines = router.send("GET", "/metrics", admin=True)[2].decode().splitlines()
    return next(line for line in lines if line.startswith(name)).split()[-1]


def rows(router: Router, change: str) -> list[Any]:
    return [row for row in router.rows("engine") if row["change"] == change]


@pytest.fixture
def two() -> Any:
    engines = [FakeEngine(), FakeEngine()]
    yield engines
    for engine in engines:
        engine.close()


RECOVERY = "probe_interval_s: 0.1, probe_timeout_s: 3, readmit_after: 1"


def test_the_other_role_serves_when_one_has_no_engine_and_it_is_said(tmp_path: Path, two: list[FakeEngine]) -> None:
    with routing(tmp_path, two, recovery=RECOVERY) as router:
        assert "degraded" not in ready(router)[1]
        two[0].close()
        eventually(lambda: router.state()["engines"][0]["state"] == "ejected", "the ejection")
        status, said = ready(router)
        assert status == 200
        assert "no prefill engine is live: decode engines serve both phases" in said["degraded"]
        assert router.state()["degraded"] == said["degraded"]
        assert metric(router, 'narwhal_degraded{role="prefill"}') == "1.0"
        assert router.send("POST", "/v1/completions", BODY)[0] == 200
        assert two[1].generations[-1].leg == 0


def test_or_it_refuses_by_policy(tmp_path: Path, two: list[FakeEngine]) -> None:
    with routing(tmp_path, two, recovery=RECOVERY + ", degraded: refuse") as router:
        two[0].close()
        eventually(lambda: ready(router)[0] == 503, "the refusal")
        assert "recovery.degraded is refuse" in ready(router)[1]["reason"]
        assert router.send("POST", "/v1/completions", BODY)[0] == 503


def test_a_request_that_two_engines_fail_on_is_asked_of_no_third_and_blames_none(tmp_path: Path) -> None:
    engines = [FakeEngine() for _ in range(4)]
    with routing(tmp_path, engines, prefill=3) as router:
        for engine in engines[:3]:
            engine.leg_1 = lambda asked, sock: reply(sock, BROKEN, 500)
        for _ in range(12):
            assert router.send("POST", "/v1/completions", BODY)[0] == 502
        assert sum(len(engine.generations) for engine in engines) == 24
        assert [engine["state"] for engine in router.state()["engines"]] == ["live"] * 4
        assert not rows(router, "ejected")
    for engine in engines:
        engine.close()


def test_a_new_generation_is_asked_for_its_model_a_completion_and_kv_before_it_has_work(tmp_path: Path) -> None:
    engines = [FakeEngine() for _ in range(4)]
    with routing(tmp_path, engines) as router:
        engines[0].names, engines[0].started_at = ["other"], "1.9e9"
        eventually(lambda: bool(rows(router, "refused")), "the refusal")
        assert "it does not serve m" in rows(router, "refused")[0]["reason"]
        assert router.state()["engines"][0]["state"] == "ejected"
        for _ in range(3):
            assert router.send("POST", "/v1/completions", BODY)[0] == 200
        assert engines[0].generations == []
        engines[0].names = ["m"]
        eventually(lambda: router.state()["engines"][0]["state"] == "live", "the readmission")
        assert [asked.leg for asked in engines[0].generations] == [0, 1, 2]
        eventually(lambda: bool(rows(router, "readmitted")), "its row")
        said = rows(router, "readmitted")[0]["reason"]
        assert said.startswith("healthy, completes prompts, hands KV over both ways with ")
    for engine in engines:
        engine.close()


# The canary


def logprobs(gap: float, noise: float) -> Any:
    """An engine's answer whose choices lie so far apart, and differ so much each time."""
    said = iter(range(1000))

    def answer(asked: Asked, sock: Any) -> None:
        first = -0.1 - noise * (next(said) % 2)
        rows = [{"a": first, "b": first - gap} for _ in range(asked.body["max_tokens"])]
        reply(sock, {"choices": [{"text": "a", "logprobs": {"top_logprobs": rows}}]})

    return answer


@pytest.mark.parametrize(("gap", "noise", "found"), [(0.7, 0.0, True), (0.7, 0.2, False), (0.05, 0.0, False)])
def test_a_canary_is_armed_where_its_gap_is_above_the_noise(gap: float, noise: float, found: bool) -> None:
    engine = FakeEngine()
    engine.whole = logprobs(gap, noise)
    url = EngineUrl("local/0", f"http://127.0.0.1:{engine.port}")
    armed = asyncio.run(arm(url, "m", 16, 0.1, random.Random(1)))
    assert isinstance(armed, Armed) is found
    if isinstance(armed, Armed):
        assert len(armed.prompt) == 3 * 16 + 8
        assert (armed.gap, armed.noise) == (pytest.approx(gap), pytest.approx(noise))
    else:
        assert f"gap of {gap:.3f}" in armed
    salts = [asked.body["cache_salt"] for asked in engine.generations]
    assert len(set(salts)) == len(salts) > 1
    engine.close()


def test_an_engine_without_log_probabilities_arms_none() -> None:
    engine = FakeEngine()
    url = EngineUrl("local/0", f"http://127.0.0.1:{engine.port}")
    assert asyncio.run(arm(url, "m", 16, 0.1, random.Random(1))) == "the engine tells no log-probabilities"
    engine.close()


# What a look and a probe say, and what they do not


@pytest.mark.parametrize(("status", "outcome"), [(0, "leg_2"), (500, "leg_2"), (503, "untold"), (404, "untold")])
def test_a_busy_engine_or_one_that_refuses_is_not_ill(status: int, outcome: str) -> None:
    error = LegError(2, EngineError("x", "status", status))
    assert _failed(TryPair(1, "a", "b", "blame", 1.0), error, "leg_2").outcome == outcome


def test_pace_and_late_notifications_are_read_from_the_page() -> None:
    page = METRICS + (
        'vllm:generation_tokens_total{engine="0"} 120.0\n'
        'vllm:inter_token_latency_seconds_sum{engine="0"} 2.5\n'
        'vllm:inter_token_latency_seconds_count{engine="0"} 50.0\n'
        'vllm:nixl_num_notifications_after_expiry_total{engine="0"} 3.0\n'
    )
    seen, without = VllmDialect().metrics(page), VllmDialect().metrics(METRICS)
    assert seen is not None
    assert without is not None
    assert (seen.tokens, seen.intervals, seen.intervals_s, seen.late_notifications) == (120, 50, 2.5, 3)
    assert (without.tokens, without.intervals, without.late_notifications) == (-1, 0, -1)


def test_a_router_that_has_no_time_itself_says_nothing_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    engine.whole = lambda asked, sock: engine.wait_gone(sock)
    monkeypatch.setattr(probes, "LATE_S", -1.0)  # whatever comes is late

    async def ask() -> None:
        pool = Pool(asyncio.get_running_loop(), "127.0.0.1", engine.port)
        with pytest.raises(RouterLateError):
            await get(pool, "/slow", 0.05)
        monkeypatch.setattr(probes, "LATE_S", 60.0)
        with pytest.raises(TimeoutError):
            await get(pool, "/slow", 0.05)
        pool.close()

    asyncio.run(ask())
    engine.close()
