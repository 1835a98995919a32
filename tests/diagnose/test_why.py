"""`narwhal why`: what it says of decisions is what their records hold; a journal answers as its router would."""

import json
from pathlib import Path
from typing import Any

import pytest

from narwhal.cli.verbs import run_app
from narwhal.diagnose.decisions import in_a_row, scored, sentence
from narwhal.diagnose.history import HistoryError, journal_files, read_history
from narwhal.diagnose.schemas import MODELS, render
from narwhal.diagnose.why import UnknownError, from_journal, why_last, why_move, why_not, why_since
from narwhal.documents import data_path, problems
from tests.diagnose.test_words import decision, guard


def split(prefill: int, decode: int, score: float) -> dict[str, Any]:
    return {"prefill": prefill, "decode": decode, "ttft": score, "tpot": 0.1, "queue": 0.2, "score": score}


SPLITS = [split(2, 2, 1.3), split(3, 1, 0.9), split(1, 3, 2.5)]
START = {"type": "start", "t": 0.0, "utc": "2026-11-30T12:00:00Z", "fleet": "lab", "version": "1"}


def journal(folder: Path, *decisions: dict[str, Any], more: tuple[dict[str, Any], ...] = ()) -> Path:
    rows = [START, *({"type": "decision", "decision": each} for each in decisions), *more]
    lines = [json.dumps(row, separators=(",", ":")) for row in rows]
    (folder / "journal.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_every_split_of_a_record_is_told_with_what_became_of_it() -> None:
    rows = scored(decision(1, "moved", candidates=SPLITS))
    assert [(row.split, row.verdict, round(row.gain, 2)) for row in rows] == [
        ("2P2D", "now", 0.0),
        ("3P1D", "moved", 0.4),
        ("1P3D", "not chosen", -1.2),
    ]
    assert [row.verdict for row in scored(decision(1, "stay", candidates=SPLITS, moves=[]))][1:] == ["not enough"] * 2
    assert scored(decision(1, "held", candidates=SPLITS))[1].verdict == "held"


def test_a_sentence_names_what_held_and_leaves_out_what_follows_from_it() -> None:
    rules = [guard("evidence_span_s", False, 1.5, 4), guard("confirmations", False, 0, 2)]
    held = decision(1, "held", reason="TTFT 1.31; held by evidence_span_s: 1.5 against 4", guards=rules)
    assert sentence(held) == "TTFT 1.31; held: the evidence window has been open for 1.5 s of 4 s"
    alone = decision(1, "held", reason="TTFT 1.31", guards=rules[1:])
    assert sentence(alone) == "TTFT 1.31; held: found by 0 of 2 evaluations in a row"


def test_decisions_that_the_same_gates_held_are_told_once() -> None:
    one, two, other = decision(1, "held"), decision(2, "held"), decision(3, "held", guards=[guard("hold", False, 1, 0)])
    assert [(each["id"], times) for each, times in in_a_row([one, two, other, decision(4, "moved")])] == [
        (2, 2),
        (3, 1),
        (4, 1),
    ]


def test_a_journal_is_explained_without_a_router(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    moved = decision(3, "moved", candidates=SPLITS, guards=[])
    change = {"type": "engine", "t": 30.5, "engine": "local/1", "change": "moved", "reason": "to prefill"}
    row = {**change, "epoch": 1, "decision": 3}
    journal(tmp_path, decision(1, "held"), moved, decision(6, "held"), more=(row,))
    assert run_app(["why", "move", "3", "--journal", str(tmp_path), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)["data"]
    assert problems(document, "why") == []
    assert [each["id"] for each in document["moves"]] == [3]
    assert document["explained"][0]["at"] == "2026-11-30T12:00:30Z"
    assert document["changes"] == [row]
    assert run_app(["why", "--since", "35s", "--journal", str(tmp_path / "journal.jsonl")]) == 0
    said = capsys.readouterr().out
    assert "12:00:30  decision 3 moved: local/1 decode → prefill, reason 3" in said
    assert "12:01:00  decision 6 held: local/1 decode → prefill, reason 6; held: the last move to decode was" in said
    assert "decision 1" not in said, "50 s before the end"


@pytest.mark.parametrize("words", [["move"], ["move", "x"], ["foo"], ["not"], ["not", "both"], ["not", "a", "b", "c"]])
def test_what_is_no_question_is_answered_with_those_there_are(words: list[str], tmp_path: Path) -> None:
    assert run_app(["why", *words, "--journal", str(journal(tmp_path, decision(1, "stay")))]) == 2
    assert run_app(["why", "--since", "soon", "--journal", str(tmp_path)]) == 2


def test_what_is_not_kept_is_said(tmp_path: Path) -> None:
    told = from_journal(journal(tmp_path, decision(4, "held"), decision(9, "moved")))
    with pytest.raises(UnknownError, match="decisions 4 to 9 are kept"):
        why_move(told, 5)
    with pytest.raises(HistoryError, match="there is no journal"):
        read_history(tmp_path / "nowhere")
    (tmp_path / "other.jsonl").write_text('["no row"]\n')
    with pytest.raises(HistoryError, match=r"other\.jsonl:1: not a row"):
        read_history(tmp_path / "other.jsonl")


def test_a_number_that_two_lives_gave_is_the_latest_one_s(tmp_path: Path) -> None:
    journal(tmp_path, decision(1, "moved"), decision(2, "moved"))
    old = (tmp_path / "journal.jsonl").rename(tmp_path / "journal.jsonl.1")
    journal(tmp_path, decision(1, "held"))
    assert journal_files(tmp_path) == [old, tmp_path / "journal.jsonl"]
    told = from_journal(tmp_path)
    assert why_move(told, 1).document.held[0]["id"] == 1
    assert why_move(told, 2).lines[0].startswith("decision of another life: decision 2")
    assert why_last(told).lines[0] == "no engine has been moved yet"
    assert [run.decision for run in why_since(told, 1e9).document.explained] == [1]


def test_why_not_says_which_gate_or_what_is_missing(tmp_path: Path) -> None:
    asked = [guard("act_at", True, 1.3, 0.8), guard("movement_margin", False, 0.4, 0.5)]
    stay = decision(1, "stay", candidates=SPLITS, guards=asked, moves=[])
    told = from_journal(journal(tmp_path, stay))
    reasons = why_not(told, "prefill").document.why_not
    assert reasons is not None
    assert reasons.reasons[1:] == [
        "3P1D would score 0.90: better by 0.40",
        "held: the best other split is better by 0.4, a move needs 0.5",
    ]
    floor = [guard("act_at", True, 1.3, 0.8), guard("min_decode", False, 0, 1), guard("pin", False, 1, 0, "local/2")]
    told.evaluations[:] = [decision(2, "stay", candidates=[SPLITS[0], SPLITS[2]], guards=floor, moves=[])]
    reasons = why_not(told, "prefill").document.why_not
    assert reasons is not None
    assert reasons.reasons[1:] == [
        "held: decode would have 0 engines, its floor is 1",
        "held: local/2 is pinned to decode",
    ]
    told.evaluations[:] = [decision(3, "moved", candidates=SPLITS)]
    reasons = why_not(told, "decode").document.why_not
    assert reasons is not None
    assert reasons.reasons[-1] == "the decision was about prefill instead, scores 0.90: reason 3"


def test_schemas_are_those_of_the_models() -> None:
    for name in MODELS:
        assert data_path("schemas", name, "v1.json").read_text() == render(name), f"run make schemas: {name}"
