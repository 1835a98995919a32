"""Traffic of points, prompts, reconciling, checks, and the search for the highest rate."""

import asyncio
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from narwhal.diagnose import AdminClient
from narwhal.fleet.model import MixTraffic, Point, RateTraffic, SharedPrefix, Slo, TraceTraffic, Validity
from narwhal.measure import BenchError, Load, Outcome, Planned, Target
from narwhal.measure.bench import bisect, rounded
from narwhal.measure.checks import busy, not_stolen, same_engines, same_router, schedule_kept, verdict
from narwhal.measure.figures import client_facts, figures
from narwhal.measure.heartbeat import Heartbeat, waited_s
from narwhal.measure.machine import cpu_ticks, stolen_share
from narwhal.measure.prompts import IdPrompts, text_prompts
from narwhal.measure.reconcile import alone, reconciled
from narwhal.measure.traffic import at, own_rate, planned
from narwhal.measure.watching import Watch
from narwhal.profiling import EngineUrl

SLO = Slo(ttft_s=1.0, tpot_s=0.05)


def point(traffic: Any, **options: Any) -> Point:
    return Point(name="p", traffic=traffic, **({"warmup_s": 0.0, "duration_s": 100.0} | options))


def rate(**options: Any) -> RateTraffic:
    return RateTraffic(**({"kind": "rate", "rate_rps": 20, "prompt_tokens": 100, "output_tokens": 10} | options))


@pytest.mark.parametrize(("arrivals", "cv"), [("constant", 0.0), ("poisson", 1.0), ("gamma", 3.0)])
def test_arrivals_have_their_rate_and_their_spread(arrivals: str, cv: float) -> None:
    requests = planned(point(rate(arrivals=arrivals, cv=3.0)), Path(), None)
    gaps = [b.t_s - a.t_s for a, b in itertools.pairwise(requests)]
    assert 1 / statistics.mean(gaps) == pytest.approx(20, rel=0.25)
    assert statistics.pstdev(gaps) / statistics.mean(gaps) == pytest.approx(cv, rel=0.25, abs=1e-6)
    assert planned(point(rate(arrivals=arrivals)), Path(), None) == planned(
        point(rate(arrivals=arrivals)), Path(), None
    )


def test_lengths_are_spread_around_their_mean() -> None:
    requests = planned(point(rate(spread=0.5)), Path(), None)
    assert {50, 150} >= {r.prompt_tokens for r in requests if not 50 <= r.prompt_tokens <= 150}
    assert statistics.mean(r.prompt_tokens for r in requests) == pytest.approx(100, rel=0.05)
    assert all(r.max_tokens == 10 for r in planned(point(rate()), Path(), None))


MOONCAKE = "".join(
    json.dumps({"timestamp": 1000 * t, "input_length": 100 * (t + 1), "output_length": 10, "hash_ids": []}) + "\n"
    for t in range(60)
)
AIPERF = "".join(
    json.dumps(
        {
            "metadata": {"request_start_ns": 10**9 * t, "x_request_id": str(t)},
            "metrics": {
                "input_sequence_length": {"value": 100 * (t + 1), "unit": "tokens"},
                "output_sequence_length": {"value": 10, "unit": "tokens"},
            },
        }
    )
    + "\n"
    for t in range(60)
)
JOURNAL = '{"type":"start","t":0}\n' + "".join(
    json.dumps(
        {"type": "request", "arrived_t": 7.0 + t, "prompt_tokens": 100 * (t + 1), "completion_tokens": 10, "tenant": ""}
    )
    + "\n"
    for t in range(60)
)
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{t:02}.0000000,{100 * (t + 1)},10\n" for t in range(60)
)
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + "".join(
    f"{t},GPT-4,{100 * (t + 1)},10,0,x\n" for t in range(60)
)


@pytest.mark.parametrize(
    "text", [MOONCAKE, AIPERF, JOURNAL, AZURE, BURST], ids=["mooncake", "aiperf", "journal", "azure", "burst"]
)
def test_traces_of_every_format_are_sent_compressed_and_scaled(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace").write_text(text)
    traffic = TraceTraffic(kind="trace", path="trace", compress=2, prompt_scale=0.5, max_prompt_tokens=500)
    requests = planned(point(traffic, duration_s=20.0), tmp_path, None)
    assert [r.t_s for r in requests] == [pytest.approx(t / 2) for t in range(40)]
    assert [r.prompt_tokens for r in requests] == [min(50 * (t + 1), 500) for t in range(40)]
    assert own_rate(point(traffic, duration_s=20.0), tmp_path) == pytest.approx(2, rel=0.05)
    faster = planned(at(point(traffic, duration_s=20.0), 8.0), tmp_path, None)
    assert len(faster) == pytest.approx(160, rel=0.2)


def test_a_trace_that_is_too_short_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text(MOONCAKE)
    with pytest.raises(BenchError, match="lasts 59 s, and 100 s"):
        planned(point(TraceTraffic(kind="trace", path="trace")), tmp_path, None)


def test_mixes_turn() -> None:
    requests = planned(
        point(MixTraffic(kind="mix", mix="turning:code,conv:10", rate_rps=5), duration_s=20.0), Path(), None
    )
    assert {r.kind for r in requests if r.t_s < 10} == {"code"}
    assert {r.kind for r in requests if r.t_s >= 10} == {"conv"}


def test_a_point_without_a_request_is_refused() -> None:
    with pytest.raises(BenchError, match="no request is sent"):
        planned(point(rate(rate_rps=0.001), duration_s=1.0), Path(), None)


def ids_of(prompts: IdPrompts, number: int, tokens: int) -> list[int]:
    found: list[int] = json.loads("{" + prompts.field(number, tokens) + "}")["prompt"]
    return found


def test_ids_have_exact_lengths_and_differ_from_their_first_token_on() -> None:
    prompts = IdPrompts(1)
    drawn = [ids_of(prompts, number, 1 + number % 50) for number in range(200)]
    assert [len(ids) for ids in drawn] == [1 + number % 50 for number in range(200)]
    assert len({ids[0] for ids in drawn}) == 200


def test_shared_prefixes_are_taken_in_turn() -> None:
    prompts = IdPrompts(1, SharedPrefix(tokens=20, groups=2))
    drawn = [ids_of(prompts, number, 30) for number in range(6)]
    assert len({tuple(ids[:20]) for ids in drawn}) == 2
    assert drawn[0][:20] == drawn[2][:20] != drawn[1][:20]
    assert len({tuple(ids[20:]) for ids in drawn}) == 6
    assert all(len(ids) == 30 for ids in drawn)


@pytest.mark.parametrize("chat", [False, True])
def test_text_has_exact_lengths_by_the_tokenizer(chat: bool) -> None:
    def count(text: str) -> int:  # "people" is two tokens here, and the server adds three
        return sum(2 if word == "people" else 1 for word in text.split()) + 3

    prompts = text_prompts(count, 1, chat=chat, shared=SharedPrefix(tokens=10))
    texts = []
    for number in range(30):
        document = json.loads("{" + prompts.field(number, prompts.fitted(20 + number)) + "}")
        texts.append(document["messages"][0]["content"] if chat else document["prompt"])
        assert count(texts[-1]) == 20 + number
    assert len(set(texts)) == 30
    assert {tuple(text.split()[:7]) for text in texts} == {tuple(texts[0].split()[:7])}
    assert prompts.fitted(1) == 4


def test_a_tokenizer_that_splits_words_is_refused() -> None:
    with pytest.raises(BenchError, match="common words"):
        text_prompts(len, 1, chat=False, shared=None)


def outcome(
    number: int, result: Any = "served", *, tokens: int = 10, status: int = 200, sent_s: float = 0.0
) -> Outcome:
    made = Outcome(Planned(0.0, 5, 10, "k"), sent_s, result=result, status=status, tokens=tokens, id=f"b-{number}")
    if result == "served":
        made.first_token_s, made.last_token_s, made.ended_s = sent_s + 0.5, sent_s + 0.8, sent_s + 0.9
    return made


def row(number: int, outcome: str = "served", tokens: int = 10, arrived_t: float = 1.0) -> dict[str, Any]:
    return {
        "type": "request",
        "id": f"b-{number}",
        "outcome": outcome,
        "completion_tokens": tokens,
        "arrived_t": arrived_t,
        "ttft_s": 0.498,
        "tpot_s": None,
    }


def test_equal_books_are_reconciled_and_say_how_far_times_are_apart() -> None:
    mine = [outcome(0), outcome(1, "refused", status=429), outcome(2, "cut"), outcome(3, "cancelled", status=0)]
    found = reconciled(mine, [row(0), {"type": "engine"}, row(1, "refused"), row(2, "cut")])
    assert found.outcome == "passed"
    assert "4 requests" in found.message
    assert "+2.00 ms" in found.message


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "b-0 has no row"),
        ([row(0), row(0)], "b-0 has 2 rows"),
        ([row(0, "cut")], "b-0 was served to its client and cut in the journal"),
        ([row(0, tokens=9)], "b-0 got 10 tokens, and 9 in the journal"),
    ],
)
def test_every_difference_is_found(rows: list[Any], said: str) -> None:
    found = reconciled([outcome(0), outcome(1)], [*rows, row(1)])
    assert found.outcome == "failed"
    assert said in found.message
    assert "1 of 2" in found.message


def test_requests_of_others_are_found_by_when_they_arrived() -> None:
    assert alone([outcome(0)], [row(0), row(7, arrived_t=0.5)], since_t=1.0).outcome == "passed"
    assert alone([outcome(0)], [row(0), row(7, arrived_t=1.5)], since_t=1.0).outcome == "failed"


def state(**changes: Any) -> dict[str, Any]:
    engines = [
        {"id": f"e/{n}", "state": "live", "probation": False, "residents": 0, "prefills": 0, "generation": f"g{n}"}
        for n in range(2)
    ]
    calm = {"requests": 0, "oldest_s": 0.0}
    base = {"lease": None, "engines": engines, "degraded": "", "journal": {"error": ""}, "queue": calm}
    return {**base, "seats_waiting": 0, "uptime_s": 10.0, **changes}


def with_engine(**changes: Any) -> dict[str, Any]:
    whole = state()
    whole["engines"][1] |= changes
    return whole


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (state(), ""),
        (state(lease={"standing": "leader", "proven": True}), ""),
        (state(lease={"standing": "standby", "proven": False}), "does not lead"),
        (with_engine(state="ejected"), "e/1 is ejected"),
        (with_engine(probation=True), "e/1 is on probation"),
        (with_engine(residents=1), "requests are on e/1"),
        (with_engine(prefills=1), "requests are on e/1"),
        (state(queue={"requests": 2}), "2 requests wait"),
        (state(seats_waiting=1), "1 requests wait"),
        (state(degraded="no decode engine"), "no decode engine"),
        (state(journal={"error": "full"}), "journal cannot be written"),
    ],
)
def test_a_fleet_that_is_not_idle_and_healthy_is_told_why(seen: dict[str, Any], said: str) -> None:
    assert said in busy(seen) if said else busy(seen) == ""


def test_a_restarted_engine_or_router_makes_figures_void() -> None:
    assert same_engines(state(), state(), []).outcome == "passed"
    restarted = same_engines(state(), with_engine(generation="new"), [])
    assert (restarted.outcome, restarted.message) == ("failed", "e/1 was restarted")
    ejected = same_engines(state(), state(), [{"type": "engine", "engine": "e/0", "change": "ejected"}])
    assert (ejected.outcome, ejected.message) == ("failed", "e/0 was ejected")
    fewer = state()
    fewer["engines"].pop()
    assert same_engines(state(), fewer, []).message == "e/1 is gone"
    assert same_engines(fewer, state(), []).message == "e/1 joined"
    assert same_router(state(), state(uptime_s=20.0), 9.0).outcome == "passed"
    assert same_router(state(), state(uptime_s=3.0), 9.0).outcome == "failed"
    assert same_router(state(uptime_s=1.0), state(uptime_s=5.0), 9.0).outcome == "failed"


def test_stolen_time_makes_figures_void(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  100 0 50 800 10 0 5 35 0 0\ncpu0 1 2 3\n")
    before = cpu_ticks(tmp_path / "stat")
    assert before == (35, 1000)
    share = stolen_share(before, (85, 2000))
    assert share == 0.05
    untold = client_facts([outcome(0)], 1, 0.0)
    assert not_stolen(share, untold, Validity()).outcome == "failed"
    assert not_stolen(0.01, untold, Validity()).outcome == "passed"
    assert not_stolen(None, untold, Validity()).outcome == "skipped"
    (tmp_path / "stat").write_text("cpu 1 2\n")
    assert cpu_ticks(tmp_path / "stat") is None
    assert stolen_share(None, before) is None


@pytest.mark.parametrize(("waited", "stall_s", "wrong"), [(0.01, 0.01, ""), (0.5, 0.01, "a core"), (0.01, 2.0, "run")])
def test_a_load_generator_that_is_kept_from_running_makes_figures_void(
    waited: float, stall_s: float, wrong: str
) -> None:
    facts = client_facts([outcome(0)], 1, 0.1, waited_share=waited, stall_max_s=stall_s)
    found = not_stolen(0.0, facts, Validity())
    assert found.outcome == ("failed" if wrong else "passed")
    assert wrong in found.message


def test_waiting_for_a_core_is_read_from_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "schedstat").write_text("809698 4500000000 2\n")
    assert waited_s(tmp_path / "schedstat") == 4.5
    (tmp_path / "schedstat").write_text("0\n")
    assert waited_s(tmp_path / "schedstat") is None
    assert waited_s(tmp_path / "none") is None


def test_a_heart_that_was_held_up_says_for_how_long() -> None:
    async def run(hold_s: float) -> float:
        beats = Heartbeat()
        beats.start()
        time.sleep(hold_s)  # what it is to notice: the loop does not get to run
        beats.stop()
        return beats.late_max_s

    assert asyncio.run(run(0.4)) >= 0.3


def test_a_late_load_makes_figures_void() -> None:
    late = [outcome(n, sent_s=0.03 if n < 3 else 0.0) for n in range(100)]
    facts = client_facts(late, 5, 0.5)
    assert (facts.sent, facts.lag_p50_s, facts.lag_p99_s, facts.streams_max) == (100, 0.0, 0.03, 5)
    assert schedule_kept(facts, Validity()).outcome == "failed"
    assert schedule_kept(facts, Validity(lag_p99_s=0.05)).outcome == "passed"


def test_figures_and_verdict() -> None:
    found = figures([outcome(0), outcome(1), outcome(2, "refused", status=429), outcome(3, "cancelled")], SLO, 2.0)
    assert (found.offered, found.served, found.refused, found.cancelled) == (4, 2, 1, 1)
    assert (found.attainment, found.goodput_rps, found.offered_rps) == (0.5, 1.0, 2.0)
    assert found.ttft_s is not None
    assert (found.ttft_s.count, found.ttft_s.p50) == (2, 0.5)
    kept = schedule_kept(client_facts([outcome(0)], 1, 0.0), Validity())
    assert verdict(point(rate()), found, [kept]).passed is None
    assert verdict(point(rate(), attainment=0.5), found, [kept]).passed is True
    assert verdict(point(rate(), attainment=0.6), found, [kept]).passed is False
    void = verdict(point(rate(), attainment=0.5), found, [kept, not_stolen(1.0, client_facts([], 0, 0.0), Validity())])
    assert (void.valid, void.passed) == (False, None)


@pytest.mark.parametrize(("limit", "found"), [(0.5, (None, 1.0)), (100.0, (16.0, None))])
def test_a_search_whose_bounds_say_it_all_ends_there(limit: float, found: tuple[float | None, float | None]) -> None:
    async def holds(rate_rps: float) -> bool:
        return rate_rps <= limit

    assert asyncio.run(bisect(holds, 1.0, 16.0, 0.05)) == found


def test_a_search_closes_in_on_the_rate() -> None:
    tried: list[float] = []

    async def holds(rate_rps: float) -> bool:
        tried.append(rate_rps)
        return rate_rps <= 7.3

    low, high = asyncio.run(bisect(holds, 1.0, 16.0, 0.05))
    assert low is not None
    assert high is not None
    assert low <= 7.3 < high
    assert high - low <= 0.05 * high
    assert len(tried) == len(set(tried)) < 10
    assert tried == [rounded(rate_rps) for rate_rps in tried]


def test_engines_that_can_be_reached_tell_their_metrics() -> None:
    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nup 1")
        await writer.drain()
        writer.close()

    async def run() -> Watch:
        server = await asyncio.start_server(answered, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        closed = await asyncio.start_server(answered, "127.0.0.1", 0)
        nobody = closed.sockets[0].getsockname()[1]
        closed.close()
        await closed.wait_closed()
        urls = {id_: EngineUrl(id_, f"http://127.0.0.1:{at}") for id_, at in (("h/0", port), ("h/1", nobody))}
        watch = Watch(AdminClient("http://127.0.0.1:1"), urls)
        load = Load(Target("127.0.0.1", port, "m"), [])
        for _ in range(2):
            await watch.scrape_engines(load)
        server.close()
        return watch

    asked: list[bytes] = []
    watch = asyncio.run(run())
    assert [(scrape.engine, scrape.text) for scrape in watch.scrapes] == [("h/0", "up 1")] * 2
    assert asked == [b"GET /metrics HTTP/1.1"] * 2
