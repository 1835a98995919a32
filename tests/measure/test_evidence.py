"""Evidence is whole or not there, says what it holds for, and its page says what it is."""

import contextlib
import re
from pathlib import Path

from narwhal.documents import problems
from narwhal.fleet.model import Point, RateTraffic, Slo
from narwhal.measure.evidence import (
    DOCUMENT,
    JOURNAL,
    METRICS,
    REQUESTS,
    SAMPLES,
    BenchEvidence,
    BenchInputs,
    BenchVerdict,
    CheckName,
)
from narwhal.measure.figures import client_facts, figures
from narwhal.measure.keeping import digest_of, new_folder, read_evidence, still_holds, write_document, write_rows
from narwhal.measure.machine import machine_facts
from narwhal.measure.reconcile import AGREEING
from narwhal.measure.schemas import MODELS

PAGE = (Path(__file__).parents[2] / "docs/reference/evidence.md").read_text()
POINT = Point(name="p", traffic=RateTraffic(kind="rate", rate_rps=1, prompt_tokens=5, output_tokens=5))
INPUTS = BenchInputs(point=digest_of("p"), trace=None, fleet=None, served=None, profiles={}, narwhal="1")


def kept(parent: Path, at: str, *, inputs: BenchInputs = INPUTS, valid: bool = True) -> Path:
    """Evidence of a point without requests."""
    with new_folder(parent, at) as (partial, final):
        evidence = BenchEvidence(
            kind="BenchEvidence",
            benchmark="b",
            point=POINT,
            slo=Slo(ttft_s=1, tpot_s=1),
            started_at=at,
            ended_at=at,
            router_start_t=None,
            inputs=inputs,
            fleet=None,
            machine=machine_facts(0.0, 0.0),
            client=client_facts([], 0, 0.0),
            figures=figures([], Slo(ttft_s=1, tpot_s=1), 1.0),
            verdict=BenchVerdict(valid=valid, passed=None, checks=[]),
            files={REQUESTS: write_rows(partial / REQUESTS, [{"a": 1}, {"a": 2}])},
        )
        write_document(partial / DOCUMENT, evidence)
    return final


def test_it_is_what_its_schema_says_and_reads_back(tmp_path: Path) -> None:
    folder = kept(tmp_path, "2026-11-30T10:00:00.000Z")
    assert folder.name == "20261130T100000.000Z"
    evidence = read_evidence(folder)
    assert evidence is not None
    assert problems(evidence.model_dump(mode="json", by_alias=True), "bench-evidence") == []
    assert evidence.files[REQUESTS].rows == 2


def test_a_folder_that_was_changed_counts_as_not_there(tmp_path: Path) -> None:
    folder = kept(tmp_path, "2026-11-30T10:00:00.000Z")
    (folder / REQUESTS).write_text('{"a":1}\n{"a":3}\n')
    assert read_evidence(folder) is None
    (folder / REQUESTS).unlink()
    assert read_evidence(folder) is None


def test_an_end_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    with contextlib.suppress(KeyboardInterrupt), new_folder(tmp_path, "2026-11-30T10:00:00.000Z") as (partial, _):
        (partial / REQUESTS).write_text("{}")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_the_newest_that_counts_and_has_the_same_inputs_holds(tmp_path: Path) -> None:
    other = INPUTS.model_copy(update={"narwhal": "2"})
    assert still_holds(tmp_path, INPUTS) is None
    kept(tmp_path, "2026-11-30T10:00:00.000Z")
    newest = kept(tmp_path, "2026-11-30T11:00:00.000Z")
    kept(tmp_path, "2026-11-30T12:00:00.000Z", valid=False)
    kept(tmp_path, "2026-11-30T13:00:00.000Z", inputs=other)
    found = still_holds(tmp_path, INPUTS)
    assert found is not None
    assert found[0] == newest
    assert still_holds(tmp_path, INPUTS.model_copy(update={"trace": digest_of("t")})) is None


def test_the_page_names_every_schema_and_file() -> None:
    listed = set(re.findall(r"^\| `([a-z-]+)` \| `[^`]+` \|", marked("files"), re.MULTILINE))
    assert listed == {*MODELS, "journal"}
    assert {DOCUMENT, REQUESTS, JOURNAL, SAMPLES, METRICS} <= set(re.findall(r"[A-Za-z]+\.jsonl?", PAGE))


def marked(name: str) -> str:
    part = re.search(rf"<!-- {name} -->(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert part is not None
    return part[1]


def test_the_page_names_every_check() -> None:
    assert set(re.findall(r"`([a-z]+)`", marked("checks"))) == set(CheckName.__args__)  # type: ignore[attr-defined]


def test_the_page_says_which_ends_agree() -> None:
    listed = {
        row[0]: set(re.findall(r"`([a-z]+)`", row[1]))
        for row in re.findall(r"^\| `(\w+)` \| (.*) \|$", marked("agreeing"), re.M)
    }
    assert listed == {result: set(outcomes) for result, outcomes in AGREEING.items() if outcomes}
