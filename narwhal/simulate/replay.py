"""Replaying a router's own events through control: the same events must give the same decisions.

A router keeps two files in its journal's directory. `events.jsonl` begins each start of a router with a line
`{"type": "Settings", …}` and holds every event that control was given; `journal.jsonl` holds the decisions, as rows
of type `decision`. The last start is replayed. Decisions may stand in the file of events as well.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from narwhal.control import Settings
from narwhal.control.commands import AnyCommand, Decided
from narwhal.control.control import Control
from narwhal.control.events import AnyEvent, EngineJoined, RequestArrived, RequestFinished
from narwhal.control.records import Decision
from narwhal.simulate.scenario import Scenario
from narwhal.simulate.simulation import EngineSetup
from narwhal.simulate.traces import at_rate, why_unreadable
from narwhal.simulate.workload import Workload

_EVENTS = msgspec.json.Decoder(AnyEvent)
_DECIDED = msgspec.json.Decoder(Decided)
_EVENT_NAMES = {kind.__name__ for kind in AnyEvent.__args__}
EVENTS_FILE, JOURNAL_FILE = "events.jsonl", "journal.jsonl"
SHOWN = 10
"""Differences that a report spells out."""


class ReplayError(ValueError):
    """A journal that cannot be replayed; the message begins with `file:line:`."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What a router wrote down."""

    settings: Settings
    events: list[AnyEvent]
    decisions: list[Decision]


@dataclass(slots=True)
class Replayed:
    """A replay beside what was recorded."""

    events: int = 0
    decisions: int = 0
    """Decisions that were recorded."""
    different: int = 0
    differences: list[str] = field(default_factory=list)

    def data(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "events": self.events,
            "decisions": self.decisions,
            "different": self.different,
            "differences": self.differences,
        }


def settings_document(settings: Settings) -> dict[str, Any]:
    """Settings as they stand in a file of events."""
    return {"type": "Settings", **settings.document()}


def read_recording(path: Path) -> Recording:
    """The last start of a router in a file of events, or in a journal's directory. Raises `ReplayError`."""
    if path.is_dir() or path.name == JOURNAL_FILE:
        path = (path if path.is_dir() else path.parent) / EVENTS_FILE
    settings: Settings | None = None
    events: list[AnyEvent] = []
    decisions: list[Decision] = []
    for number, line in _lines(path):
        try:
            kind = json.loads(line).get("type")
            if kind == "Settings":
                settings, events, decisions = Settings.read(json.loads(line)), [], []
            elif kind in _EVENT_NAMES:
                events.append(_EVENTS.decode(line))
            elif kind == "Decided":
                decisions.append(_DECIDED.decode(line).decision)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ReplayError(f"{path}:{number}: cannot be replayed: {error}") from error
    if settings is None:
        raise ReplayError(f"{path}:1: no settings in it; is it a router's {EVENTS_FILE}?")
    if not events:
        raise ReplayError(f"{path}:1: no event in it")
    journal = path.with_name(JOURNAL_FILE)
    return Recording(settings, events, decisions or (_journalled(journal) if journal.is_file() else []))


def _journalled(path: Path) -> list[Decision]:
    """Decisions in a journal since the last start of the router."""
    decisions: list[Decision] = []
    for number, line in _lines(path):
        try:
            row = json.loads(line)
            if row.get("type") == "start":
                decisions = []
            elif row.get("type") == "decision":
                decisions.append(msgspec.convert(row["decision"], Decision))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ReplayError(f"{path}:{number}: not a row of a journal: {error}") from error
    return decisions


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ReplayError(f"{path}: cannot read it: {why_unreadable(error)}") from error
    return ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip())


def decide(settings: Settings, events: Iterable[AnyEvent]) -> Iterator[AnyCommand]:
    """The commands that control gives for the events."""
    control = Control(settings)
    for event in events:
        yield from control.handle(event)


def replay(path: Path) -> Replayed:
    """Run a file of events through control and compare its decisions with the recorded ones. Raises `ReplayError`."""
    recording = read_recording(path)
    again = [
        command.decision for command in decide(recording.settings, recording.events) if isinstance(command, Decided)
    ]
    made = {decision.id: decision for decision in again}
    report = Replayed(events=len(recording.events), decisions=len(recording.decisions))
    for decision in recording.decisions:
        other = made.get(decision.id)
        if other == decision:
            continue
        report.different += 1
        if len(report.differences) < SHOWN:
            report.differences.append(_difference(decision, other))
    return report


def _difference(recorded: Decision, again: Decision | None) -> str:
    if again is None:
        return f"decision {recorded.id} at {recorded.t:.3f} s ({recorded.outcome}) was not made again"
    return (
        f"decision {recorded.id} at {recorded.t:.3f} s: recorded {recorded.outcome} ({recorded.reason}), "
        f"now {again.outcome} ({again.reason})"
    )


def recorded_scenario(path: Path) -> tuple[Scenario, float]:
    """The recorded engines, settings and requests, for other policies to serve; and the recorded rate.

    Requests that never finished count one token. Raises `ReplayError`.
    """
    recording = read_recording(path)
    workload = _workload(recording, path)
    joined = {event.engine: event for event in recording.events if isinstance(event, EngineJoined)}
    engines = tuple(
        EngineSetup(e.engine, e.role, e.curves, e.pin, e.device, e.measured)
        for e in sorted(joined.values(), key=lambda e: e.engine)
    )

    def traffic(rate_rps: float, seed: int) -> Workload:
        return workload if rate_rps == workload.rate_rps else at_rate(workload, rate_rps, seed)

    return Scenario(engines, recording.settings, traffic), workload.rate_rps


def _workload(recording: Recording, path: Path) -> Workload:
    outputs = {e.request: e.completion_tokens for e in recording.events if isinstance(e, RequestFinished)}
    arrivals = sorted((e for e in recording.events if isinstance(e, RequestArrived)), key=lambda e: e.t)
    if not arrivals:
        raise ReplayError(f"{path}:1: no request in it")
    start = arrivals[0].t
    return Workload(
        path.stem,
        [e.t - start for e in arrivals],
        [max(e.prompt_tokens, 1) for e in arrivals],
        [max(outputs.get(e.request, 1), 1) for e in arrivals],
        [e.tenant for e in arrivals],
        max(arrivals[-1].t - start, 1e-3),
    )
