"""Benchmark files are judged like fleet files: by schema and meaning, every mistake at its place."""

from pathlib import Path

import pytest

from narwhal.documents import problems
from narwhal.fleet import check_file, check_text
from narwhal.fleet.source import parse_source
from tests.fleet.fleets import broken, findings, place_of

GOOD = """\
apiVersion: narwhal/v1
kind: Benchmark
metadata: {name: evening}
slo: {ttft_s: 2.0, tpot_s: 0.05}
points:
  - name: chat-4
    traffic: {kind: rate, rate_rps: 4, prompt_tokens: 500, output_tokens: 100, arrivals: gamma, cv: 3}
    endpoint: chat
    prompts: text
  - name: turning
    traffic:
      kind: mix
      mix: turning:code,reas:60
      rate_rps: 2
    attainment: 0.9
"""


def test_a_good_file_is_one() -> None:
    checked = check_text(GOOD)
    assert checked.findings == ()
    assert checked.fleet is None
    assert checked.benchmark is not None
    assert [point.name for point in checked.benchmark.points] == ["chat-4", "turning"]
    assert problems(parse_source(GOOD, "f").data, "benchmark") == []


@pytest.mark.parametrize(
    ("id_", "old", "new", "piece", "said"),
    [
        ("NW003", "narwhal/v1", "narwhal/v9", "narwhal/v9", "apiVersion: narwhal/v1"),
        ("NW004", "    attainment: 0.9", "    attainmnt: 0.9", "attainmnt", "attainment"),
        ("NW004", "rate_rps: 4,", "rate: 4, rate_rps: 4,", "rate: 4", "rate_rps"),
        ("NW005", "prompt_tokens: 500, ", "", "traffic: {kind: rate", "prompt_tokens: 500"),
        ("NW005", "      kind: mix\n", "", "traffic:\n", "mix, rate, trace"),
        ("NW006", "rate_rps: 4,", "rate_rps: fast,", "fast", "rate_rps: 4"),
        ("NW007", "kind: rate,", "kind: rat,", "rat,", "did you mean `rate`"),
        ("NW007", "turning:code,reas:60", "turning:code:60", "turning:code:60", "turning:code,reas:60"),
        ("NW007", "attainment: 0.9", "attainment: 90", "90", "at most 1"),
        ("NW007", "slo: {ttft_s: 2.0, tpot_s: 0.05}", "slo: {ttft_s: 2.0, tpot_s: -1}", "-1", "more than 0"),
        ("NW080", "name: turning", "name: chat-4", "chat-4\n    traffic:\n", "a name of its own"),
        ("NW081", "    prompts: text\n", "", "chat\n", "prompts: text"),
    ],
)
def test_a_mistake_is_found_at_its_place(id_: str, old: str, new: str, piece: str, said: str) -> None:
    text = broken(old, new, GOOD)
    found = findings(text)
    assert [f.id for f in found] == [id_], found
    assert (found[0].line, found[0].column) == place_of(text, piece)
    assert said in f"{found[0].expected} {found[0].hint}"


def test_paths_are_meant_from_the_file(tmp_path: Path) -> None:
    text = broken(
        "kind: mix\n      mix: turning:code,reas:60\n      rate_rps: 2", "kind: trace\n      path: a.csv", GOOD
    )
    (tmp_path / "bench.yaml").write_text(text)
    assert [f.id for f in check_file(str(tmp_path / "bench.yaml")).findings] == ["NW082"]
    (tmp_path / "a.csv").write_text("")
    assert check_file(str(tmp_path / "bench.yaml")).findings == ()
