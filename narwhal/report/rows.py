"""Rows of the files beside our evidence: samples of the router's state, and its journal."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from narwhal.measure import BenchSample
from narwhal.report.taken import Taken

SAMPLES, JOURNAL = "samples.jsonl", "journal.jsonl"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Move:
    """One engine that changed its role."""

    t_s: float
    """Seconds after the load began."""
    engine: str
    target: str
    """Its new role."""
    reason: str
    """Why, in the controller's words; of an order, who gave it."""


def samples(one: Taken) -> list[BenchSample]:
    """The router's state over time; empty without a router."""
    return [BenchSample.model_validate_json(line) for line in _lines(one, SAMPLES)]


def journal(one: Taken) -> list[Row]:
    """The router's rows; empty without a router."""
    return [json.loads(line) for line in _lines(one, JOURNAL)]


def _lines(one: Taken, name: str) -> list[bytes]:
    if one.folder is None or one.evidence is None or name not in one.evidence.files:
        return []
    return (one.folder / name).read_bytes().splitlines()


def moves(one: Taken) -> list[Move]:
    """Role moves during the load, with the reasons of their decisions."""
    return list(_moves(one, journal(one)))


def _moves(one: Taken, rows: list[Row]) -> Iterator[Move]:
    start_t = one.evidence.router_start_t if one.evidence is not None else None
    if start_t is None:
        return
    reasons: dict[int, str] = {
        row["decision"]["id"]: row["decision"]["reason"] for row in rows if row.get("type") == "decision"
    }
    for row in rows:
        if row.get("type") == "engine" and row["change"] == "moved":
            reason = reasons.get(row.get("decision") or 0, str(row["reason"]))
            yield Move(row["t"] - start_t, row["engine"], row["reason"].removeprefix("to "), reason)
