"""What workers cost: our router with two of them against itself as one process, in front of the same mock engines.

    python bench/router/workers.py --rounds 5

Rounds alternate between the two in random order; a ratio is that of one round, the table has the medians. CPU is that
of all processes of a router. Both are kept as busy as the load generator's 32 connections make them.
"""

import argparse
import contextlib
import os
import random
import statistics
import sys
from collections.abc import Sequence
from functools import partial

import cpu
import tools
from routers import OURS, SHARED, running
from scenes import Stage

RATIO, MORE_US = 1.5, 40.0
"""Goals of a request: how many times the CPU of one process it may take, and how many microseconds more."""
SCENES = {
    "two-leg request, 500 B": ("request", partial(cpu._request, 500, 4000), True),
    "two-leg request, 8 KB": ("request", partial(cpu._request, 8192, 3000), True),
    "chunk, 256 streams in phase": ("in_phase", partial(cpu._in_phase, "in_phase"), False),
}
say = partial(print, file=sys.stderr, flush=True)


def row(name: str, alone: Sequence[float], shared: Sequence[float], judged: bool) -> str:
    """One row of the table: medians of both, of the rounds' ratios, and of their differences."""
    ratio = statistics.median(b / a for a, b in zip(alone, shared, strict=True))
    more = statistics.median(b - a for a, b in zip(alone, shared, strict=True))
    goal = f"≤ {RATIO:g} and ≤ {MORE_US:g} µs more" if judged else ""
    met = ("yes" if ratio <= RATIO and more <= MORE_US else "no") if judged else ""
    figures = f"{statistics.median(alone):.1f} | {statistics.median(shared):.1f} | {ratio:.2f} | {more:+.1f}"
    return f"| CPU of a {name}, µs | {figures} | {goal} | {met} |"


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds (default 5)")
    rounds = parser.parse_args().rounds
    seen: dict[str, dict[str, list[float]]] = {name: {OURS: [], SHARED: []} for name in SCENES}
    try:
        tools.build()
        with contextlib.ExitStack() as stack:
            mock = stack.enter_context(tools.Mock())
            routers = [stack.enter_context(running(name, mock)) for name in (OURS, SHARED)]
            for number in range(rounds):
                for name, (key, play, _) in SCENES.items():
                    for router in random.sample(routers, 2):
                        value = play(Stage(mock, number, 0, 0.0), router)[key]
                        seen[name][router.name].append(value)
                        say(f"round {number + 1}, {name}, {router.name}: {value:.1f} µs")
    except tools.ToolError as error:
        say(f"bench: {error}")
        return 2
    print("| measure | one process | 2 workers | ratio | difference | goal | met |")
    print("|---|---|---|---|---|---|---|")
    for name, (_, _, judged) in SCENES.items():
        print(row(name, seen[name][OURS], seen[name][SHARED], judged))
    print(f"\n{rounds} rounds; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
