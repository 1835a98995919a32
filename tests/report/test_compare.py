"""Judging runs against each other: what must hold of verdicts, and how often intervals hold the truth."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.report import make_report, read_runs
from narwhal.report.bootstrap import (
    Interval,
    Values,
    block_length,
    intervals,
    resampled,
    share_of,
    student,
    widened,
)
from narwhal.report.compare import compare
from narwhal.report.document import ComparedPoint, Comparison
from narwhal.report.taken import Run, quantile
from tests.report.evidence import SLO, outcomes, point_named, write_point

OPPOSITE = {"better": "worse", "worse": "better", "cannot tell": "cannot tell"}


@pytest.fixture(autouse=True)
def _fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("narwhal.report.compare.RESAMPLES", 400)


def run_of(folder: Path, name: str, **more: Any) -> Run:
    """A run of one point of 240 requests, one in twenty refused."""
    wanted: dict[str, Any] = {"count": 240, "lost": 0.05, **more}
    point = wanted.pop("point", None)
    said, slo = wanted.pop("wrong", ""), wanted.pop("slo", SLO)
    write_point(folder / name, outcomes(wanted.pop("count"), **wanted), point=point, wrong=said, slo=slo)
    (run,) = read_runs([folder / name])
    return run


def only(comparison: Comparison) -> ComparedPoint:
    (point,) = comparison.points
    return point


def verdicts(point: ComparedPoint) -> dict[str, str]:
    return {one.figure: one.verdict for one in point.differences}


def test_a_run_against_itself_cannot_be_told(tmp_path: Path) -> None:
    run = run_of(tmp_path, "a")
    point = only(compare(run, run))
    assert point.paired
    assert (point.verdict, set(verdicts(point).values())) == ("cannot tell", {"cannot tell"})
    assert {(one.low, one.high) for one in point.differences if not one.why} == {(0.0, 0.0)}


def test_a_slower_copy_is_worse_and_a_faster_one_better(tmp_path: Path) -> None:
    base, slower = run_of(tmp_path, "a"), run_of(tmp_path, "b", slower=1.3)
    worse, better = only(compare(slower, base)), only(compare(base, slower))
    assert (worse.verdict, better.verdict) == ("worse", "better")
    for point, verdict in ((worse, "worse"), (better, "better")):
        assert {verdicts(point)[name] for name in ("ttft_p50_s", "tpot_p50_s", "gap_p90_s")} == {verdict}


@pytest.mark.parametrize("seed", [1, 2])
def test_other_requests_are_not_paired_and_exchanged_runs_exchange_every_verdict(tmp_path: Path, seed: int) -> None:
    one, other = run_of(tmp_path, "a", seed=1), run_of(tmp_path, "b", seed=2, slower=1.2, count=230)
    there, back = only(compare(one, other, seed)), only(compare(other, one, seed))
    assert (there.paired, back.paired) == (False, False)
    assert back.verdict == OPPOSITE[there.verdict]
    for mine, its in zip(there.differences, back.differences, strict=True):
        assert its.verdict == OPPOSITE[mine.verdict]
        if mine.low is not None and mine.high is not None:
            assert (its.low, its.high) == pytest.approx((-mine.high, -mine.low))


def test_equal_seeds_give_equal_intervals(tmp_path: Path) -> None:
    one, other = run_of(tmp_path, "a"), run_of(tmp_path, "b", slower=1.1)
    assert compare(one, other, 5) == compare(one, other, 5)
    assert compare(one, other, 5) != compare(one, other, 6)


def test_attainment_outweighs_times_since_those_who_refuse_are_quick(tmp_path: Path) -> None:
    """A run that refuses half is quicker for the rest, and worse."""
    base, refusing = run_of(tmp_path, "a"), run_of(tmp_path, "b", slower=0.5, lost=0.6)
    point = only(compare(refusing, base))
    assert verdicts(point)["ttft_p50_s"] == "better"
    assert (point.verdict, point.why) == ("worse", "by attainment")


def test_quantiles_with_too_few_requests_beyond_them_are_not_told(tmp_path: Path) -> None:
    base, slower = run_of(tmp_path, "a"), run_of(tmp_path, "b", slower=2.0)
    point = only(compare(slower, base))
    told = {one.figure: one for one in point.differences}
    assert (told["ttft_p99_s"].verdict, told["ttft_p99_s"].why) == ("cannot tell", "too few requests beyond it")
    assert told["ttft_p99_s"].difference is not None


def test_what_does_not_count_or_is_not_the_same_is_not_judged(tmp_path: Path) -> None:
    base = run_of(tmp_path, "a")
    invalid = only(compare(run_of(tmp_path, "b", wrong="late", slower=3.0), base))
    assert (invalid.verdict, invalid.differences) == ("cannot tell", [])
    assert "this run do not count" in invalid.why
    faster = run_of(tmp_path, "c", slower=0.5, point=point_named("chat-4", 9.0))
    other_load = only(compare(faster, base))
    assert other_load.verdict == "cannot tell"
    assert "other traffic" in other_load.why
    targets = only(compare(run_of(tmp_path, "d", slo=SLO.model_copy(update={"tpot_s": 1.0})), base))
    assert targets.differences[0].why == "other targets"


def test_points_of_one_run_alone_are_named(tmp_path: Path) -> None:
    base, other = run_of(tmp_path, "a"), run_of(tmp_path, "b", point=point_named("chat-9"))
    comparison = compare(base, other)
    assert (comparison.points, comparison.only_here, comparison.only_there) == ([], ["chat-4"], ["chat-9"])
    assert make_report([base], other).comparison == comparison


@given(
    n=st.integers(1, 60),
    block=st.integers(1, 60),
    seed=st.integers(0, 10),
    values=st.lists(st.one_of(st.none(), st.floats(0, 10)), min_size=60, max_size=60),
    share=st.sampled_from([0.5, 0.9, 0.99]),
)
@settings(max_examples=80, deadline=None)
def test_a_resample_has_n_requests_and_its_figures_are_those_of_its_requests(
    n: int, block: int, seed: int, values: list[float | None], share: float
) -> None:
    weights = resampled(n, min(block, n), random.Random(seed))
    assert (len(weights), sum(weights)) == (n, n)
    assert min(weights) >= 0
    drawn = [value for value, times in zip(values[:n], weights, strict=True) for _ in range(times)]
    kept = sorted(value for value in drawn if value is not None)
    assert Values(values[:n]).quantile(share)(weights) == quantile(kept, share)
    met = [value is not None for value in values[:n]]
    assert share_of(met)(weights) == pytest.approx(sum(value is not None for value in drawn) / n)


def test_blocks_are_as_long_as_the_correlation() -> None:
    rng = random.Random(1)
    free = [rng.random() for _ in range(400)]
    assert block_length(free) <= 3
    assert block_length(correlated(400, 0.9, rng)) > 8
    assert (block_length([1.0] * 50), block_length([1.0]), block_length([])) == (1, 1, 1)


def correlated(n: int, phi: float, rng: random.Random) -> list[float]:
    """A positive series in which each value resembles the one before it."""
    value, found = rng.gauss(0, 1) / math.sqrt(1 - phi * phi), []
    for _ in range(n):
        value = phi * value + rng.gauss(0, 1)
        found.append(math.exp(0.5 * value))
    return found


@pytest.mark.parametrize(("phi", "least"), [(0.0, 0.85), (0.8, 0.8)])
def test_intervals_of_two_runs_of_the_same_hold_zero(phi: float, least: float) -> None:
    """Of nominal 95 %; single requests drawn from the correlated series would hold it in about half."""
    rng, times, held = random.Random(3), 40, 0
    for number in range(times):
        one, other = correlated(200, phi, rng), correlated(200, phi, rng)
        block = max(block_length(one), block_length(other))
        drawn = random.Random(number)
        draws = ((resampled(200, block, drawn), resampled(200, block, drawn)) for _ in range(150))
        here, there = Values(one).quantile(0.5), Values(other).quantile(0.5)
        (found,) = intervals([here], [there], draws, 0.05)
        ones = [1] * 200
        difference = (here(ones) or 0.0) - (there(ones) or 0.0)
        assert found is not None
        interval = widened(found, difference, 200 // block, 0.05)
        held += interval.low <= 0 <= interval.high
    assert held >= least * times


def test_student_s_quantiles_and_what_few_blocks_do() -> None:
    assert student(0.975, 9) == pytest.approx(2.262, abs=0.005)
    assert student(0.975, 5) == pytest.approx(2.571, abs=0.01)
    wide = widened(Interval(-1.0, 2.0), 0.5, 6, 0.05)
    assert wide.low < -1.0
    assert wide.high > 2.0
    assert widened(Interval(-1.0, 2.0), 0.5, 10_000, 0.05).low == pytest.approx(-1.0, abs=0.01)
