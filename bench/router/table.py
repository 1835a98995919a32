"""From samples to rows, and rows as a table, a document, and the part of docs/performance.md that this bench owns."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from peers import REFERENCE
from routers import DIRECT
from scenes import Figure, Sample

BEGIN, END = "<!-- bench-router: begin -->", "<!-- bench-router: end -->"
HEAD = ("measure", "unit", "ours", "peer", "ratio", "goal", "met")


@dataclass(frozen=True, slots=True)
class Row:
    """One measure against one peer, or alone."""

    measure: str
    unit: str
    against: str | None
    """Name of the peer."""
    ours: float | None
    peer: float | None
    ratio: float | None
    """Median of the ratios ours / peer of the rounds."""
    ratio_range: tuple[float, float] | None
    """Least and largest of them."""
    goal: str
    met: bool | None
    rounds: int
    note: str = ""
    """Why a figure is missing."""


def rows_of(
    figure: Figure,
    rounds: Sequence[Mapping[str, Sample]],
    peers: Sequence[str],
    missing: Mapping[str, str],
) -> list[Row]:
    """The rows of a figure, one for each peer; `rounds` hold samples by router, `missing` why a router has none."""
    against: Sequence[str | None] = peers if figure.peers and peers else (None,)
    return [_row(figure, rounds, peer, missing) for peer in against]


def _row(
    figure: Figure,
    rounds: Sequence[Mapping[str, Sample]],
    peer: str | None,
    missing: Mapping[str, str],
) -> Row:
    ours = [_value(figure, samples, figure.ours) for samples in rounds]
    theirs = [_value(figure, samples, peer) if peer else None for samples in rounds]
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None and b > 0]
    ratios = [max(a, 0.0) / b for a, b in pairs]
    ratio = statistics.median(ratios) if ratios else None
    fold: Callable[[list[float]], float] = max if figure.fold == "max" else statistics.median
    mine = [value for value in ours if value is not None]
    other = [value for value in theirs if value is not None]
    result = fold(mine) if mine else None
    goal = figure.goal if figure.goal and peer in (None, REFERENCE) else None
    notes = [missing[name] for name in (figure.ours, peer) if name is not None and name in missing]
    return Row(
        measure=figure.measure,
        unit=figure.unit,
        against=peer,
        ours=result,
        peer=fold(other) if other else None,
        ratio=ratio,
        ratio_range=(min(ratios), max(ratios)) if ratios else None,
        goal=goal.text(figure.unit) if goal else "",
        met=goal.met(result, ratio) if goal else None,
        rounds=len(mine),
        note="; ".join(notes),
    )


def _value(figure: Figure, samples: Mapping[str, Sample], router: str) -> float | None:
    sample, direct = samples.get(router), samples.get(DIRECT)
    if sample is None or (figure.added and direct is None):
        return None
    return sample[figure.key] - (direct[figure.key] if figure.added and direct else 0.0)


def document(rows: Sequence[Row], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The `BenchRouter` document."""
    return {
        "apiVersion": "narwhal/v1",
        "kind": "BenchRouter",
        "data": {**facts, "rows": [asdict(row) for row in rows]},
    }


def cells(row: Row) -> tuple[str, ...]:
    """A row as text."""
    ratio = _number(row.ratio)
    if row.ratio_range and row.rounds > 1:
        ratio += f" [{_number(row.ratio_range[0])}, {_number(row.ratio_range[1])}]"
    peer = f"{_number(row.peer)} ({row.against})" if row.against else ""
    met = {True: "yes", False: "no", None: ""}[row.met]
    return row.measure, row.unit, _number(row.ours), peer, ratio, row.goal, met


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def text(rows: Sequence[Row], facts: Mapping[str, Any]) -> str:
    """The table for people."""
    lines = [HEAD, *map(cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*table, *(f"note: {note}" for note in _notes(rows)), described(facts)])


def _notes(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.note for row in rows if row.note))


def described(facts: Mapping[str, Any]) -> str:
    """Where and how it was measured, in a sentence or two."""
    machine, before, after = facts["machine"], facts["load_average"][0], facts["load_average"][1]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    busy = after > machine["cores"]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, Python {machine['python']}; "
        f"{versions}. "
        f"{facts['rounds']} alternating rounds in {facts['wall_s'] / 60:.0f} minutes, {facts['date']}; load average "
        f"{before:.1f} before, {after:.1f} after"
        + (": other work ran beside it, so CPU, memory and ratios count, and times in ms do not." if busy else ".")
    )


def markdown(rows: Sequence[Row], facts: Mapping[str, Any]) -> str:
    """The part of docs/performance.md that this bench owns."""
    table = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    table += [f"| {' | '.join(cells(row))} |" for row in rows]
    notes = [f"Not measured: {note}." for note in _notes(rows)]
    return "\n\n".join([f"{BEGIN}\n{described(facts)}\nMade by `{facts['command']}`.", "\n".join(table), *notes, END])


def write(rows: Sequence[Row], facts: Mapping[str, Any], page: Path) -> None:
    """Put the table between its markers in a page that has them."""
    old = page.read_text()
    page.write_text(old[: old.index(BEGIN)] + markdown(rows, facts) + old[old.index(END) + len(END) :])
