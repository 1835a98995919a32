"""What is found below a path, what counts of it, and what is said of the rest."""

import json
from pathlib import Path

import pytest

from narwhal.measure import BenchSearch
from narwhal.measure.keeping import write_document
from narwhal.report import ReportError, read_runs
from narwhal.report.document import ReportPoint
from narwhal.report.taken import names
from tests.report.evidence import fleet_seen, outcomes, point_named, write_point

LATER = "2026-11-30T11:00:00.000Z"


def only(path: Path) -> ReportPoint:
    (run,) = read_runs([path])
    (one,) = run.taken
    return one.point


def test_a_point_says_what_its_evidence_does(tmp_path: Path) -> None:
    made = outcomes(240, lost=0.1)
    folder = write_point(tmp_path, made)
    point = only(tmp_path)
    lost = sum(one.result == "refused" for one in made)
    assert (point.point, point.source, point.standing) == ("chat-4", "narwhal", "counts")
    assert (point.offered, point.served, point.refused) == (240, 240 - lost, lost)
    assert (point.asked_rps, point.kept_rps, point.policy, point.moves) == (4.0, 4.0, "reactive", 1)
    assert point.ttft_s is not None
    assert point.ttft_s.count == 240 - lost
    assert point.evidence == f"chat-4/{folder.name}"
    assert only(folder) == point.model_copy(update={"evidence": folder.name})


def test_roles_that_were_held_are_a_policy_of_their_own(tmp_path: Path) -> None:
    write_point(tmp_path, outcomes(10), fleet=fleet_seen(held=True))
    assert only(tmp_path).policy == "held 2p2d"


def test_an_invalid_point_says_why_and_carries_no_plot(tmp_path: Path) -> None:
    write_point(tmp_path, outcomes(10), wrong="99 % were sent within 80 ms")
    (run,) = read_runs([tmp_path])
    assert run.taken[0].point.standing == "invalid"
    assert run.taken[0].point.wrong == ["schedule: 99 % were sent within 80 ms"]
    assert run.counting == []


def test_the_newest_that_counts_replaces_older_ones_and_an_invalid_one_replaces_nothing(tmp_path: Path) -> None:
    write_point(tmp_path, outcomes(10))
    newest = write_point(tmp_path, outcomes(20), at=LATER)
    write_point(tmp_path, outcomes(30), at="2026-11-30T12:00:00.000Z", wrong="no")
    (run,) = read_runs([tmp_path])
    assert [one.point.standing for one in run.taken] == ["older", "counts", "invalid"]
    assert [one.folder for one in run.counting] == [newest]


def test_a_point_below_its_declared_attainment_is_missed(tmp_path: Path) -> None:
    write_point(tmp_path, outcomes(40, slower=5.0), point=point_named("strict", attainment=0.9))
    assert (only(tmp_path).standing, only(tmp_path).wanted) == ("missed", 0.9)


def test_what_was_changed_or_left_half_done_is_named_and_not_taken(tmp_path: Path) -> None:
    good = write_point(tmp_path, outcomes(10))
    changed = write_point(tmp_path, outcomes(10), at=LATER)
    (changed / "requests.jsonl").write_text("{}\n")
    bare = tmp_path / "chat-4/20261130T130000.000Z"
    bare.mkdir()
    partial = tmp_path / "chat-4/.20261130T140000.000Z.partial"
    partial.mkdir()
    (run,) = read_runs([tmp_path])
    assert [one.folder for one in run.taken] == [good]
    said = {one.path: (one.state, one.reason) for one in run.unusable}
    assert said.keys() == {f"chat-4/{folder.name}" for folder in (changed, bare, partial)}
    assert said[f"chat-4/{changed.name}"] == (
        "unreadable",
        "requests.jsonl is not what was written: its SHA-256 differs from the one in BenchEvidence.json",
    )
    assert "No such file" in said[f"chat-4/{bare.name}"][1]
    assert said[f"chat-4/{partial.name}"][0] == "partial"


@pytest.mark.parametrize(("text", "said"), [("{", "no BenchEvidence: Invalid JSON"), ("{}", "no BenchEvidence: kind")])
def test_a_document_that_is_none_is_named(tmp_path: Path, text: str, said: str) -> None:
    folder = write_point(tmp_path, outcomes(10))
    (folder / "BenchEvidence.json").write_text(text)
    (run,) = read_runs([tmp_path])
    assert said in run.unusable[0].reason


def test_rates_of_a_search_keep_their_names_and_the_search_is_told(tmp_path: Path) -> None:
    folder = write_point(tmp_path, outcomes(10))
    (tmp_path / "chat-4").rename(tmp_path / "chat-4@6.5")
    search = BenchSearch(
        kind="BenchSearch",
        benchmark="b",
        point="chat-4",
        level=0.9,
        ended_at=LATER,
        goodput_rps=6.5,
        above_rps=7.0,
        tries=[],
    )
    (tmp_path / "chat-4").mkdir()
    write_document(tmp_path / f"chat-4/{folder.name}-BenchSearch.json", search)
    (run,) = read_runs([tmp_path])
    assert [one.point.point for one in run.taken] == ["chat-4@6.5"]
    assert [(found.goodput_rps, found.above_rps) for found in run.searches] == [(6.5, 7.0)]


def test_points_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("chat-12", "chat-4", "azure"):
        write_point(tmp_path, outcomes(10), name=name)
    (run,) = read_runs([tmp_path])
    assert [one.point.point for one in run.taken] == ["azure", "chat-4", "chat-12"]


def test_a_path_without_evidence_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="no evidence"):
        read_runs([tmp_path])
    with pytest.raises(ReportError, match="no such file"):
        read_runs([tmp_path / "none"])


def test_a_file_that_is_no_result_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"a": 1}))
    (run,) = read_runs([path])
    assert "no result of AIPerf" in run.unusable[0].reason


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["/r/a"], ["a"]),
        (["/r/a", "/r/b"], ["a", "b"]),
        (["/r/a/bench", "/r/b/bench"], ["a/bench", "b/bench"]),
        (["/r/a/bench", "/r/b/bench", "/r/c"], ["a/bench", "b/bench", "c"]),
        (["/r/a", "/r/a"], ["a", "a"]),
    ],
)
def test_runs_are_called_by_as_much_of_their_paths_as_tells_them_apart(paths: list[str], expected: list[str]) -> None:
    assert list(names([Path(path) for path in paths])) == expected
