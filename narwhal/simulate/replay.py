"""Replaying a journal of events through control: the same events must give the same decisions.

A file of events is JSON Lines. One line holds `{"settings": …}`, the parts of the fleet file that control read;
every other line an event (`{"type": "RequestArrived", "t": …}`), a decision that was made after it
(`{"type": "Decided", "decision": …}`), or something else, which is passed over.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from pydantic import ValidationError

from narwhal.control import Settings
from narwhal.control.commands import AnyCommand, Decided
from narwhal.control.control import Control
from narwhal.control.events import AnyEvent, RequestArrived, RequestFinished
from narwhal.control.records import Decision
from narwhal.fleet.model import Controller, Recovery, Serving, Slo
from narwhal.simulate.workload import Workload

_EVENTS = msgspec.json.Decoder(AnyEvent)
_DECIDED = msgspec.json.Decoder(Decided)
_EVENT_NAMES = {kind.__name__ for kind in AnyEvent.__args__}
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
    parts = {
        name: getattr(settings, name).model_dump(mode="json") for name in ("slo", "serving", "controller", "recovery")
    }
    return {"settings": {**parts, "kv_lease_s": settings.kv_lease_s}}


def read_recording(path: Path) -> Recording:
    """The recording in a file. Raises `ReplayError`."""
    settings: Settings | None = None
    events: list[AnyEvent] = []
    decisions: list[Decision] = []
    for number, line in _lines(path):
        try:
            record = json.loads(line)
            if "settings" in record:
                settings = _settings(record["settings"])
            elif record.get("type") in _EVENT_NAMES:
                events.append(_EVENTS.decode(line))
            elif record.get("type") == "Decided":
                decisions.append(_DECIDED.decode(line).decision)
        except (AttributeError, KeyError, TypeError, ValueError, ValidationError) as error:
            raise ReplayError(f"{path}:{number}: cannot be replayed: {error}") from error
    if settings is None:
        raise ReplayError(f"{path}:1: no settings in it; is it a router's file of events?")
    if not events:
        raise ReplayError(f"{path}:1: no event in it")
    return Recording(settings, events, decisions)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ReplayError(f"{path}: cannot read it: {error}") from error
    return ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip())


def _settings(record: dict[str, Any]) -> Settings:
    return Settings(
        Slo.model_validate(record["slo"]),
        Serving.model_validate(record["serving"]),
        Controller.model_validate(record["controller"]),
        Recovery.model_validate(record["recovery"]),
        float(record["kv_lease_s"]),
    )


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


def recorded_workload(path: Path) -> Workload:
    """The requests of a file of events, for another policy to serve. Those that never finished count one token.

    Raises `ReplayError`.
    """
    recording = read_recording(path)
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
