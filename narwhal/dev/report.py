"""What a demo came to: the fleet that moved beside the one that did not."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from narwhal.fleet import Expanded
from narwhal.fleet.model import Slo
from narwhal.measure import Outcome, Phase, Score, score, time_to_adapt, windows


@dataclass(frozen=True, slots=True)
class DemoMove:
    """One engine that changed its role."""

    at_s: float
    """Seconds after the traffic began."""
    engine: str
    source: str
    target: str
    reason: str
    decision: int


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the traffic, or its beginning."""

    at_s: float
    to: str
    """The phase that begins."""
    moves: int
    """Engines moved before the next turn."""
    fell: bool
    """Whether attainment in a window of 5 s of the phase fell below 0.9."""
    fell_static: bool
    time_to_adapt_s: float | None
    """From the turn until it was back; None: it never fell, or was not back within the phase."""
    time_to_adapt_static_s: float | None


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The result of a demo."""

    seconds: float
    engines: int
    split: tuple[int, int]
    """Prefill and decode engines that both fleets started with, and the static one kept."""
    moving: Score
    static: Score
    moves: Sequence[DemoMove]
    turns: Sequence[Turn]
    windows: Sequence[float | None]
    """Attainment of the fleet that moves, of what was sent in each 5 s."""
    url: str

    @property
    def time_to_adapt_s(self) -> float | None:
        """The longest of the turns after the beginning; None when attainment fell at none, or was not back at one."""
        times = [turn.time_to_adapt_s for turn in self.turns[1:] if turn.fell]
        known = [time for time in times if time is not None]
        return max(known) if known and len(known) == len(times) else None

    def data(self) -> dict[str, Any]:
        """The `data` of the command's result."""
        moving = asdict(self.moving)
        failed = moving.pop("failed") + moving.pop("cut")
        return {
            **moving,
            "failed": failed,
            "attainment_static": self.static.attainment,
            "static": asdict(self.static),
            "static_how": "a second fleet that kept its split, given the same requests at the same time",
            "split": {"prefill": self.split[0], "decode": self.split[1]},
            "moves": [asdict(move) for move in self.moves],
            "turns": [asdict(turn) for turn in self.turns],
            "time_to_adapt_s": self.time_to_adapt_s,
        }


def report(
    phases: Sequence[Phase],
    moving: Sequence[Outcome],
    static: Sequence[Outcome],
    fleet: Expanded,
    moves: Sequence[DemoMove],
    url: str,
) -> DemoReport:
    """Judge the outcomes of both fleets by the fleet file's targets."""
    slo = fleet.fleet.slo
    split = fleet.fleet.split
    return DemoReport(
        seconds=sum(phase.seconds for phase in phases),
        engines=len(fleet.engines),
        split=(split.prefill, split.decode),
        moving=score(moving, slo),
        static=score(static, slo),
        moves=tuple(moves),
        turns=_turns(phases, moving, static, slo, moves),
        windows=windows(moving, slo, sum(phase.seconds for phase in phases)),
        url=url,
    )


def _turns(
    phases: Sequence[Phase],
    moving: Sequence[Outcome],
    static: Sequence[Outcome],
    slo: Slo,
    moves: Sequence[DemoMove],
) -> list[Turn]:
    starts = [0.0, *accumulate(phase.seconds for phase in phases)]
    turns = []
    for phase, start_s, end_s in zip(phases, starts, starts[1:], strict=False):
        adapted, adapted_static = (
            time_to_adapt(outcomes, slo, turn_s=start_s, until_s=end_s) for outcomes in (moving, static)
        )
        count = sum(start_s <= move.at_s < end_s for move in moves)
        fell, times = (adapted.fell, adapted_static.fell), (adapted.seconds, adapted_static.seconds)
        turns.append(Turn(start_s, phase.name, count, *fell, *times))
    return turns


def summary_lines(result: DemoReport) -> list[str]:
    """The end of a demo in words: both fleets side by side, each move, how it was measured."""
    prefill, decode = result.split
    rows = [
        ("", "roles follow", f"{prefill}P{decode}D stays"),
        ("in SLO, of all offered", _percent(result.moving.attainment), _percent(result.static.attainment)),
    ]
    rows += [
        (name, str(getattr(result.moving, key)), str(getattr(result.static, key)))
        for name, key in (
            ("offered", "offered"),
            ("served", "served"),
            ("refused (would be late)", "refused"),
            ("failed", "failed"),
            ("cut off", "cut"),
        )
    ]
    rows += [
        (name, _seconds(getattr(result.moving, key)), _seconds(getattr(result.static, key)))
        for name, key in (("time to first token, p90", "ttft_p90_s"), ("time per token, p90", "tpot_p90_s"))
    ]
    rows += [
        (
            f"back at 90 %, {turn.to}",
            _back(turn.fell, turn.time_to_adapt_s),
            _back(turn.fell_static, turn.time_to_adapt_static_s),
        )
        for turn in result.turns
    ]
    lines = [f"{name:<28}{left:>16}{right:>16}" for name, left, right in rows]
    lines += ["", f"{len(result.moves)} moves:"]
    lines += [
        f"  {move.at_s:>5.1f} s  {move.engine} {move.source} → {move.target}: {move.reason}" for move in result.moves
    ]
    lines += [
        "",
        "Both columns were measured at the same time on two fleets of real processes, with the same requests.",
        f"The load generator was at most {max(result.moving.lag_max_s, result.static.lag_max_s) * 1000:.0f} ms"
        " behind its schedule.",
    ]
    return lines


def curl_line(url: str, model: str = "simulated") -> str:
    """A request to try."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32}
    return f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f} s"


def _back(fell: bool, seconds: float | None) -> str:
    if not fell:
        return "never below"
    return "never" if seconds is None else f"after {seconds:.1f} s"
