"""Replaying a router's own events through control: the same events must give the same decisions, and the same state."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from narwhal.control import Control, Settings
from narwhal.control.commands import Decided
from narwhal.control.events import EngineJoined, RequestArrived, RequestFinished
from narwhal.control.records import Decision
from narwhal.control.snapshot import LinesLost, Snapshot, as_read
from narwhal.simulate.engine_setup import EngineSetup
from narwhal.simulate.recording import Recording, ReplayError, read_recording, restored
from narwhal.simulate.scenario import Scenario
from narwhal.simulate.traces import at_rate
from narwhal.simulate.workload import Workload

SHOWN = 10
"""Differences that a report spells out."""


@dataclass(slots=True)
class Replayed:
    """A replay beside what was recorded."""

    begins_t: float | None = None
    """Time of the snapshot that it begins with, on the router's clock; None: it begins with the router's start."""
    events: int = 0
    decisions: int = 0
    """Recorded decisions that the replayed events can have led to."""
    different: int = 0
    """Decisions and snapshots that are not what the replay gives."""
    snapshots: int = 0
    """Snapshots that the replayed state was compared with."""
    lost_lines: int = 0
    """Lines that the router could not write; the replay goes on at the next snapshot."""
    differences: list[str] = field(default_factory=list)

    def data(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "begins_in_the_middle": self.begins_t is not None,
            "begins_t": self.begins_t,
            "events": self.events,
            "decisions": self.decisions,
            "snapshots": self.snapshots,
            "different": self.different,
            "differences": self.differences,
            "lost_lines": self.lost_lines,
        }

    def text(self) -> str:
        """The report for people."""
        lines = []
        if self.begins_t is not None:
            lines.append(f"begins in the middle, at {self.begins_t:.3f} s of the router's clock: no start is kept")
        if self.lost_lines:
            lines.append(f"{self.lost_lines} lines were never written: not replayed until the snapshots after them")
        compared = f"{self.events} events, {self.decisions} decisions and {self.snapshots} snapshots compared"
        return "\n".join([*lines, f"{compared}, {self.different} different", *(f"  {d}" for d in self.differences)])

    def differs(self, text: str) -> None:
        """Count a difference, and spell the first ones out."""
        self.different += 1
        if len(self.differences) < SHOWN:
            self.differences.append(text)


def settings_document(settings: Settings) -> dict[str, Any]:
    """Settings as they stand in a file of events."""
    return {"type": "Settings", **settings.document()}


def replay(path: Path) -> Replayed:
    """Run recorded events through control and compare its decisions with the recorded ones. Raises `ReplayError`."""
    recording = read_recording(path)
    report = Replayed(begins_t=recording.snapshot.t if recording.snapshot else None)
    made = _again(recording, report)
    if not report.events:
        raise ReplayError(f"{recording.place}: no event after it")
    recorded = {decision.id: decision for decision in recording.decisions if decision.id in made.could}
    report.decisions = len(recorded)
    for decision in recorded.values():
        other = made.decisions.get(decision.id)
        if other != decision:
            report.differs(_difference(decision, other))
    if recorded:
        kept = range(min(recorded), max(recorded) + 1)
        for decision in made.decisions.values():
            if decision.id in kept and decision.id not in recorded:
                report.differs(f"decision {decision.id} at {decision.t:.3f} s ({decision.outcome}) was not recorded")
    return report


@dataclass(slots=True)
class _Made:
    """Decisions of a replay."""

    decisions: dict[int, Decision] = field(default_factory=dict)
    """Reported ones, by number."""
    could: set[int] = field(default_factory=set)
    """Numbers of all evaluations, reported or not."""


def _again(recording: Recording, report: Replayed) -> _Made:
    """Give control every event. After a hole nothing is known until the next snapshot."""
    made = _Made()
    control: Control | None = recording.control()
    for place, step in recording.steps():
        if isinstance(step, LinesLost):
            report.lost_lines += step.lines
            control = None
        elif isinstance(step, Snapshot):
            control = _compared(control, step, place, report)
        elif control is not None:
            report.events += 1
            before = control.roles.evaluations
            for command in control.handle(step):
                if isinstance(command, Decided):
                    made.decisions[command.decision.id] = command.decision
            made.could.update(range(before + 1, control.roles.evaluations + 1))
    return made


def _compared(control: Control | None, snapshot: Snapshot, place: str, report: Replayed) -> Control:
    """The control to go on with at a snapshot: the replayed one if its state is the recorded one."""
    if control is None:
        return restored(snapshot, place)
    report.snapshots += 1
    if as_read(control) == snapshot.state:
        return control
    report.differs(f"the state at {snapshot.t:.3f} s is not that of the snapshot at {place}")
    return restored(snapshot, place)


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
    engines = {
        engine.id: EngineSetup(engine.id, engine.role, engine.curves, engine.pin, engine.device, engine.measured)
        for engine in recording.control().pool.engines.values()
    }
    arrivals: list[RequestArrived] = []
    outputs: dict[int, int] = {}
    for _, step in recording.steps():
        if isinstance(step, RequestArrived):
            arrivals.append(step)
        elif isinstance(step, RequestFinished):
            outputs[step.request] = step.completion_tokens
        elif isinstance(step, EngineJoined):
            engines[step.engine] = EngineSetup(
                step.engine, step.role, step.curves, step.pin, step.device, step.measured
            )
    if not arrivals:
        raise ReplayError(f"{recording.place}: no request after it")
    workload = _workload(path.stem, sorted(arrivals, key=lambda arrival: arrival.t), outputs)

    def traffic(rate_rps: float, seed: int) -> Workload:
        return workload if rate_rps == workload.rate_rps else at_rate(workload, rate_rps, seed)

    setups = tuple(setup for _, setup in sorted(engines.items()))
    return Scenario(setups, recording.settings, traffic), workload.rate_rps


def _workload(name: str, arrivals: list[RequestArrived], outputs: dict[int, int]) -> Workload:
    start = arrivals[0].t
    return Workload(
        name,
        [e.t - start for e in arrivals],
        [max(e.prompt_tokens, 1) for e in arrivals],
        [max(outputs.get(e.request, 1), 1) for e in arrivals],
        [e.tenant for e in arrivals],
        max(arrivals[-1].t - start, 1e-3),
    )
