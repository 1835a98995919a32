"""The life of one request, from two records of it."""

from pathlib import Path

import pytest

from narwhal.report import ReportError, make_report, read_runs
from narwhal.report.story import _parts
from narwhal.report.taken import Run
from tests.report.evidence import outcomes, write_point

ROW = {"prefill_engine": "h/0", "decode_engine": "h/2", "whole": False, "total_s": 2.0}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    write_point(tmp_path / "run", outcomes(60, lost=0.1))
    (found,) = read_runs([tmp_path / "run"])
    return found


def test_parts_follow_each_other_to_the_end() -> None:
    row = {**ROW, "queued_s": 0.2, "prefilled_s": 0.9, "ttft_s": 1.1}
    parts = list(_parts(row, 0.01))
    assert [(part.name, part.engine) for part in parts] == [
        ("queue", ""),
        ("prefill", "h/0"),
        ("handoff", "h/2"),
        ("decode", "h/2"),
    ]
    assert [part.to_s for part in parts] == pytest.approx([0.21, 0.91, 1.11, 2.01])
    assert [part.from_s for part in parts[1:]] == [part.to_s for part in parts[:-1]]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"queued_s": 0.2, "prefilled_s": None, "ttft_s": 1.1, "whole": True}, ["queue", "whole", "decode"]),
        ({"queued_s": None, "prefilled_s": None, "ttft_s": None, "prefill_engine": ""}, ["queue"]),
        ({"queued_s": 0.1, "prefilled_s": None, "ttft_s": None}, ["queue", "prefill"]),
        ({"prefilled_s": 0.9, "ttft_s": 1.1}, ["prefill", "handoff", "decode"]),
    ],
)
def test_what_never_was_is_no_part(changes: dict[str, object], names: list[str]) -> None:
    assert [part.name for part in _parts({**ROW, **changes}, 0.0)] == names


def test_the_slowest_of_each_point_is_told_with_what_its_engines_went_through(run: Run) -> None:
    (story,) = make_report([run], requests=["slowest"]).requests
    assert story.ttft_s == max(seen.ttft_s or 0.0 for seen in run.taken[0].requests)
    assert story.parts[-1].name == "decode"
    near = next(seen for seen in outcomes(60, lost=0.1) if seen.sent_s <= 10 <= (seen.ended_s or 0) and seen.ttft_s)
    (other,) = make_report([run], requests=[near.id]).requests
    assert [(one.engine, one.what) for one in other.incidents] == [("h/2", "moved to prefill")]


def test_a_request_that_is_nowhere_is_named(run: Run) -> None:
    with pytest.raises(ReportError, match="no measurement has a request 'bench-x'"):
        make_report([run], requests=["bench-5", "bench-x"])


def test_without_a_router_there_are_no_parts(tmp_path: Path) -> None:
    write_point(tmp_path / "alone", outcomes(10), watched=False)
    (story,) = make_report(read_runs([tmp_path / "alone"]), requests=["bench-3"]).requests
    assert (story.parts, story.incidents) == ([], [])
    assert story.result == "served"
