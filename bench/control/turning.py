"""`make turning`: how long a full reversal takes on four real engine processes, when traffic turns twice.

Prefill-heavy, decode-heavy, prefill-heavy, 110 s each by default (`--seconds` is the whole), through a router and four
simulated engines; a second fleet that keeps its split gets the same requests. A reversal is full when one engine is
left in the role that the new traffic does not need. Prints a page, or JSON with `--format json`.
"""

import argparse
import json
import sys
from functools import partial
from typing import Any

from narwhal.dev.demo import View, run_demo
from narwhal.dev.report import DemoReport
from narwhal.dev.traffic import DECODE_HEAVY, PREFILL_HEAVY

ENGINES = 4
WANTED = {PREFILL_HEAVY: (ENGINES - 1, 1), DECODE_HEAVY: (1, ENGINES - 1)}
Split = tuple[float, tuple[int, int]]


def figures(report: DemoReport, splits: list[Split]) -> dict[str, Any]:
    """What the run came to."""
    ends = [turn.at_s for turn in report.turns[1:]] + [report.seconds]
    turns = []
    for turn, end_s in zip(report.turns, ends, strict=True):
        reached = [t for t, split in splits if turn.at_s <= t < end_s and split == WANTED[turn.to]]
        turns.append(
            {
                "at_s": turn.at_s,
                "to": turn.to,
                "reversed_s": round(reached[0] - turn.at_s, 1) if reached else None,
                "moves": turn.moves,
                "fell": turn.fell,
                "time_to_adapt_s": turn.time_to_adapt_s,
            }
        )
    return {
        "seconds": report.seconds,
        "turns": turns,
        "offered": report.moving.offered,
        "failed": report.moving.failed + report.moving.cut,
        "refused": report.moving.refused,
        "attainment": report.moving.attainment,
        "attainment_static": report.static.attainment,
        "windows_5s": list(report.windows),
    }


def back(turn: dict[str, Any]) -> str:
    """When attainment was at its level again."""
    if not turn["fell"]:
        return "attainment never below 0.9"
    seconds = turn["time_to_adapt_s"]
    return "attainment not back at 0.9" if seconds is None else f"attainment back at 0.9 after {seconds:.1f} s"


def page(found: dict[str, Any]) -> str:
    """The figures for people."""
    lines = [
        f"{turn['at_s']:5.0f} s  {turn['to']:<14}"
        + (f"fully reversed after {turn['reversed_s']:.1f} s" if turn["reversed_s"] is not None else "never reversed")
        + f", {turn['moves']} moves, {back(turn)}"
        for turn in found["turns"]
    ]
    lines.append(
        f"{found['offered']} requests, {found['failed']} failed, {found['refused']} refused; attainment "
        f"{found['attainment']:.2f}, {found['attainment_static']:.2f} on the split that stayed"
    )
    windows = " ".join("  - " if value is None else f"{value:.2f}" for value in found["windows_5s"])
    return "\n".join([*lines, f"attainment in windows of 5 s: {windows}"])


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=330.0)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args()
    splits: list[Split] = []

    def see(view: View) -> None:
        if view.state is not None:
            split = view.state["split"]
            splits.append((view.t_s, (split["prefill"], split["decode"])))

    say = partial(print, file=sys.stderr, flush=True)
    report = run_demo(seconds=options.seconds, seed=options.seed, engines=ENGINES, say=say, show=see)
    found = figures(report, splits)
    print(json.dumps(found, indent=1) if options.format == "json" else page(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
