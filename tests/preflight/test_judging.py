"""What each check says of what engines told: with answers made up for the purpose, no socket."""

import math
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY

import pytest

from narwhal.fleet import open_fleet
from narwhal.fleet.model import Slo
from narwhal.preflight.canary import Answer, Handoff, Moved
from narwhal.preflight.deadline import Busy, deadline_check, first_token
from narwhal.preflight.document import CheckResult, Status, verdict
from narwhal.preflight.engines import ModelTold, judge_contracts, judge_models, judge_tokens
from narwhal.preflight.pairs import Outcome, Tried, Verdict, common_cause, judge, pair_checks
from narwhal.preflight.speed import judge_pace, judge_profile, judge_slo
from narwhal.preflight.transport import LongHandoff, expected, judge_transport
from narwhal.profiling import EngineFacts
from tests.preflight.profiles import NOW, measured_profile

GENERATION = "narwhal.gen.00000000-0000-4000-8000-000000000000"


def facts(engine: str, contract: str, **terms: object) -> EngineFacts:
    return EngineFacts(engine, "0.32.0", 16, 65536, True, 0, contract, {"geometry": terms})


def once(
    answer: str = "x", wanted: str = "x", tokens: int | None = 49, nbytes: int | None = 100, first_s: float = 0.01
) -> Tried:
    return Tried(Handoff(answer, 0.02, first_s), Moved(tokens, nbytes), wanted)


def outcome(producer: str, consumer: str, *tried: Tried, produced: Verdict | None = None) -> Outcome:
    consumed = judge(producer, tried, 49) if tried else Verdict("SKIP", "no KV")
    return Outcome(producer, consumer, 49, tried, produced or Verdict("ok", ""), consumed, 0.1)


# --- the verdict


@pytest.mark.parametrize(
    ("statuses", "worst"),
    [(("ok", "SKIP"), "ok"), (("ok", "WARN", "SKIP"), "WARN"), (("WARN", "FAIL", "ok"), "FAIL"), ((), "ok")],
)
def test_the_worst_check_is_the_verdict(statuses: tuple[Status, ...], worst: str) -> None:
    checks = [CheckResult(name="reach", subject="a", status=status, reason="") for status in statuses]
    assert verdict(checks) == worst


# --- contract, model, tokens


def test_the_odd_contract_is_named_with_the_field_that_differs() -> None:
    told = {"a": facts("a", "1", blocks="9"), "b": facts("b", "2", blocks="7"), "c": facts("c", "1", blocks="9")}
    seen = judge_contracts(told)
    assert [seen[engine].status for engine in "abc"] == ["ok", "FAIL", "ok"]
    assert "geometry.blocks is 7, not 9" in seen["b"].reason


def models(**changed: ModelTold) -> dict[str, Verdict]:
    good = ModelTold(("m",), 4096, "x")
    return judge_models({"a": good, "b": good, "c": good} | changed, "m", 4096)


def test_engines_that_hold_the_model_alike_are_ok() -> None:
    assert {seen.status for seen in models().values()} == {"ok"}


@pytest.mark.parametrize(
    ("told", "status", "said"),
    [
        (ModelTold(("other",), 4096, None), "FAIL", "serves other, not m"),
        (ModelTold(("m",), 2048, "x"), "FAIL", "takes 2048 tokens"),
        (ModelTold(("m",), 8192, "x"), "WARN", "takes 8192 tokens"),
        (ModelTold(("m",), 4096, "y"), "FAIL", "answers the same prompt with 'y'"),
    ],
)
def test_an_engine_with_another_model_is_the_only_one_blamed(told: ModelTold, status: str, said: str) -> None:
    seen = models(b=told)
    assert (seen["b"].status, seen["a"].status, seen["c"].status) == (status, "ok", "ok")
    assert said in seen["b"].reason


def test_an_engine_that_tells_no_generation_among_others_that_do_is_a_warning() -> None:
    told = ModelTold(("m", GENERATION), 4096, "x")
    seen = models(a=told, b=told)
    assert [seen[engine].status for engine in "abc"] == ["ok", "ok", "WARN"]


def test_tokens_are_compared_and_made_text_again() -> None:
    text = "The narwhal turns with the tide; 42 tusks, naïve as snow."
    good = ((1, 2, 3), 3, text)
    seen = judge_tokens({"a": good, "b": ((1, 2), 2, text), "c": good, "d": ((1, 2, 3), 4, text)})
    assert [seen[engine].status for engine in "abcd"] == ["ok", "FAIL", "ok", "FAIL"]
    assert judge_tokens({"a": ((1,), 1, "lossy")})["a"].status == "WARN"


# --- pairs


@pytest.mark.parametrize(
    ("tried", "status", "said"),
    [
        ([once()], "ok", "100 bytes"),
        ([once(tokens=48)], "ok", "first token"),  # a consumer may compute the last token itself
        ([once(), once(answer="y")], "FAIL", "a alone answers 'x'"),
        ([once(), once(tokens=0)], "FAIL", "0 of 49 tokens were pulled"),
        ([once(tokens=None)], "WARN", "does not count tokens"),
        ([once(nbytes=None)], "WARN", "counts no bytes"),
        ([once(nbytes=0)], "WARN", "counts no bytes"),
        ([once(tokens=98)], "WARN", "other requests"),
    ],
)
def test_a_pair_is_judged_by_its_answer_and_what_moved(tried: list[Tried], status: str, said: str) -> None:
    seen = judge("a", tried, 49)
    assert seen.status == status
    assert said in seen.reason
    assert seen.next_step or status == "ok"


def test_what_all_wrong_pairs_share_is_looked_at_first() -> None:
    wrong = once(answer="y")
    pairs = [outcome(p, c, wrong if p == "b" else once()) for p in "abc" for c in "abc" if p != c]
    causes = common_cause(pairs)
    assert set(causes) == {("b", "a"), ("b", "c")}
    assert all("in which b sends" in said for said in causes.values())
    rows = {row.subject: row for row in pair_checks(pairs) if row.name == "consume"}
    assert "look at b first" in rows["b > a"].next_step
    assert rows["a > b"].status == "ok"


def test_one_wrong_pair_among_right_ones_blames_neither_side() -> None:
    pairs = [outcome(p, c, once(answer="y" if p + c == "ab" else "x")) for p in "abc" for c in "abc" if p != c]
    assert common_cause(pairs) == {}


def test_a_producer_that_gives_no_kv_fails_and_its_consumers_are_skipped() -> None:
    bad = Verdict("FAIL", "leg 1: a: no whole answer", "look at the log of a")
    rows = pair_checks([outcome("a", "b", produced=bad), outcome("b", "a", once())])
    assert [(row.name, row.subject, row.status) for row in rows] == [
        ("produce", "a", "FAIL"),
        ("produce", "b", "ok"),
        ("consume", "a > b", "SKIP"),
        ("consume", "b > a", "ok"),
    ]


# --- profile, pace, slo


def test_a_profile_is_missing_good_or_far_from_its_samples() -> None:
    assert judge_profile(None, "c", NOW).status == "SKIP"
    assert "narwhal profile" in judge_profile(None, "c", NOW).next_step
    good = judge_profile(measured_profile(), "c", NOW)
    assert (good.status, "1.0 days old" in good.reason) == ("ok", True)
    assert judge_profile(measured_profile(error=0.3), "c", NOW).status == "WARN"


@pytest.mark.parametrize(
    ("factor", "neighbours", "status"),
    [
        (1.0, "none", "ok"),
        (1.2, "none", "ok"),
        (1.5, "none", "WARN"),
        (2.5, "none", "FAIL"),
        (0.5, "none", "WARN"),
        (0.5, "loaded", "ok"),
    ],
)
def test_pace_is_judged_against_the_profile(factor: float, neighbours: str, status: str) -> None:
    profile = measured_profile(neighbours)
    curve = profile.decode
    seconds = (curve.d0_s + curve.d1_s + curve.d2_s * 100) * factor
    assert judge_pace([(1, 100.0, seconds)], profile).status == status


def test_promises_are_weighed_by_the_curves() -> None:
    profile = measured_profile()
    empty_s = profile.decode.d0_s + profile.decode.d1_s
    assert judge_slo(profile, Slo(ttft_s=1000, tpot_s=empty_s * 2), 4096).status == "ok"
    assert judge_slo(profile, Slo(ttft_s=1000, tpot_s=empty_s / 2), 4096).status == "FAIL"
    assert judge_slo(profile, Slo(ttft_s=1e-6, tpot_s=empty_s * 2), 4096).status == "FAIL"


def test_the_longest_prompt_that_keeps_its_target_is_told() -> None:
    profile = measured_profile()
    curve, transfer = profile.prefill, profile.transfer
    length = 3000
    target_s = (
        curve.a_s
        + curve.b_s_per_token * length
        + curve.c_s_per_token2 * length**2
        + transfer.t0_s
        + length * profile.kv_bytes_per_token / transfer.bandwidth_bytes_per_s
    )
    seen = judge_slo(profile, Slo(ttft_s=target_s * (1 + 1e-9), tpot_s=1.0), 16384)
    assert (seen.status, f"more than {length} tokens" in seen.reason) == ("WARN", True)
    tiers = [{"up_to_tokens": 1024, "ttft_s": 1e-6}]
    strict = Slo.model_validate({"ttft_s": 1000, "tpot_s": 1.0, "ttft_by_prompt": tiers})
    assert judge_slo(profile, strict, 16384).status == "FAIL"


# --- the long handoffs: transport, deadline


def handed(producer: str, consumer: str, tokens: int, first_s: float, rate: float | None = None) -> LongHandoff:
    """A long handoff that moved 1 GB, at some bytes per second."""
    return LongHandoff(producer, consumer, tokens, first_s, 10**9, None if rate is None else 10**9 / rate)


def test_the_slowest_pair_sets_the_deadline_for_the_longest_prompt() -> None:
    pairs = [outcome("a", "b", once(first_s=0.01)), outcome("b", "a", once(first_s=0.1), once(first_s=0.02))]
    long = [handed("a", "b", 1049, 0.3), handed("b", "a", 1049, 1.1)]
    found = first_token(pairs, long, Busy(6, 0.25), 30.0, 2049)
    assert (found.pair, found.short_s) == ("b > a", 0.1)
    assert found.longest_s == pytest.approx(2.1)
    assert found.advised_s == 14  # 6 handoffs at once, 12.6 s, and two steps of 0.25 s, in whole seconds
    assert deadline_check(found).status == "ok"
    for configured_s in (0.0, 13.0):
        seen = deadline_check(first_token(pairs, long, Busy(6, 0.25), configured_s, 2049))
        assert (seen.status, seen.next_step) == ("WARN", "set serving.deadlines.first_token_s: 14")


@pytest.mark.parametrize("at_once", [1, 2, 6, 126])
def test_the_deadline_grows_with_the_handoffs_that_may_come_at_once(at_once: int) -> None:
    found = first_token([outcome("a", "b", once())], [handed("a", "b", 1049, 0.5)], Busy(at_once, 0.0), 30.0, 1049)
    assert found.advised_s == max(2.0, math.ceil(at_once * 0.5))
    assert f"{at_once} times that" in deadline_check(found).reason


def test_a_deadline_is_never_shorter_than_two_seconds() -> None:
    long = [handed("a", "b", 1049, 0.0005)]
    assert first_token([outcome("a", "b", once(first_s=0.001))], long, Busy(2, 0.01), 30.0, 2049).advised_s == 2


@pytest.mark.parametrize(
    ("rate", "transport", "status"),
    [(229e9, "cuda_ipc", "ok"), (12e9, "cuda_ipc", "ok"), (4e9, "staged", "WARN"), (34e6, "tcp", "WARN")],
)
def test_the_rate_tells_the_transport_where_cards_reach_each_other(rate: float, transport: str, status: str) -> None:
    told, seen = judge_transport(handed("a", "b", 8000, 0.1, rate), "cuda_ipc")
    assert (told, seen.status) == (transport, status)
    assert f"{rate / 1e9:.3g} GB/s" in seen.reason
    assert ("UCX_CUDA_IPC_ENABLE_GET_ZCOPY" in seen.next_step) == (transport == "tcp")


def test_a_rate_that_tells_nothing_is_not_judged() -> None:
    assert judge_transport(handed("a", "b", 8000, 0.1), "cuda_ipc")[1].status == "SKIP"
    assert judge_transport(handed("a", "b", 8000, 0.1, 34e6), "") == ("", ANY)
    assert judge_transport(handed("a", "b", 8000, 0.1, 34e6), "")[1].status == "ok"
    few = LongHandoff("a", "b", 100, 0.01, 1 << 20, 0.01)
    assert judge_transport(few, "cuda_ipc")[1].status == "ok"


@pytest.mark.parametrize(
    ("engines", "wanted"),
    [
        ("runtime: {kind: venv, package: vllm, path: /opt/vllm}", "cuda_ipc"),
        ("runtime: {kind: simulated}", ""),
    ],
)
def test_cards_of_one_host_are_configured_for_cuda_ipc(tmp_path: Path, engines: str, wanted: str) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "apiVersion: narwhal/v1\nkind: Fleet\nmetadata: {name: x}\nmodel: {name: m, path: /m}\n"
        "slo: {ttft_s: 1, tpot_s: 0.05}\nsplit: {prefill: 2, decode: 2}\nrouters: {primary: a}\n"
        "hosts: [{name: a, gpus: 2, fabric: {address: 10.0.0.1}}, {name: b, gpus: 2, fabric: {address: 10.0.0.2}}]\n"
        f"engines:\n  {engines}\n"
    )
    expanded = open_fleet(path)
    first, second, other = (expanded.engine(name) for name in ("a/0", "a/1", "b/0"))
    assert expected(expanded.fleet.engines.runtime, first, second) == wanted
    assert expected(expanded.fleet.engines.runtime, first, other) == ""


# --- near ties

SURE = Answer("one two three", ((0, 3.0), (3, 0.05), (7, 2.0)))
"""Three tokens, of which rounding may decide the second."""


@pytest.mark.parametrize(
    ("other", "near_tie"),
    [
        ("one tow three", True),
        ("one", True),  # its second token went another way
        ("xne two three", False),
        ("one two thirty", False),
        ("one two three more", False),
    ],
)
def test_only_the_token_at_which_answers_part_counts(other: str, near_tie: bool) -> None:
    assert SURE.is_near_tie(other) is near_tie


def test_without_log_probabilities_nothing_is_a_near_tie() -> None:
    assert not Answer("one two").is_near_tie("one tow")


def test_near_ties_warn_and_blame_nobody() -> None:
    close = replace(once("one tow", "one two"), near_tie=True)
    seen = outcome("a", "b", close)
    assert (seen.consumed.status, seen.unequal) == ("WARN", False)
    assert outcome("a", "b", once("one tow", "one two")).consumed.status == "FAIL"
    assert common_cause([outcome("a", "b", close), outcome("a", "c", close)]) == {}
