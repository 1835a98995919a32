"""`make bench-router`: our router, complete, against routers of others, in front of the same mock engines.

    make bench-router BENCH_ARGS='--rounds 5 --format json'

Every scene is made for each router in turn, in random order, round after round. A table on stdout, or one JSON
document; progress on stderr. A run of every row with five rounds or more also writes docs/performance.md.
"""

import argparse
import contextlib
import json
import os
import random
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import cpu
import decisions
import machine
import overload
import peers
import processes
import streams
import table
import tools
from routers import CONTINUED, DIRECT, OURS, Running, can_continue, running
from scenes import Sample, Scene, Solo, Stage

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
SHORT_S = 15.0
"""How long many streams last after the first round."""
PAGE_ROUNDS = 5
say = partial(print, file=sys.stderr, flush=True)


class Bench:
    """The routers that run, and every sample so far."""

    def __init__(self, options: argparse.Namespace, mock: tools.Mock, stack: contextlib.ExitStack) -> None:
        self.options = options
        self.mock = mock
        self.stack = stack
        self.began_t = time.monotonic()
        self.up: dict[str, Running] = {}
        self.gone: dict[str, str] = {}
        """Routers that cannot be had at all, and why."""
        self.failures: dict[tuple[int, str], str] = {}
        """Why a scene has no sample of a router, by scene and router."""
        self.samples: dict[int, list[dict[str, Sample]]] = {}
        """By scene, by round, by router."""

    def measure(self, scenes: Sequence[Scene | Solo]) -> list[table.Row]:
        """Every round of every scene; the rows in order."""
        for number in range(self.options.rounds):
            stage = Stage(
                self.mock, number, self.options.streams, self.options.stream_seconds if number == 0 else SHORT_S
            )
            for scene in scenes:
                self.samples.setdefault(id(scene), []).append(self._round(scene, stage))
        return [row for scene in scenes for row in self._rows(scene)]

    def _rows(self, scene: Scene | Solo) -> list[table.Row]:
        rows: list[table.Row] = []
        missing = {name: why for (at, name), why in self.failures.items() if at == id(scene)} | self.gone
        for figure in scene.figures:
            rows += table.rows_of(figure, self.samples[id(scene)], self.options.peer, missing)
        return rows

    def _round(self, scene: Scene | Solo, stage: Stage) -> dict[str, Sample]:
        if isinstance(scene, Solo):
            sample = self._sample(OURS, lambda: scene.play(stage), scene, stage)
            return {OURS: sample} if sample is not None else {}
        names = list(dict.fromkeys(figure.ours for figure in scene.figures))
        if any(figure.peers for figure in scene.figures):
            names += self.options.peer
        if any(figure.added for figure in scene.figures):
            names.append(DIRECT)
        random.shuffle(names)
        found = {}
        for name in names:
            sample = self._sample(name, lambda: self._play(scene, stage, name), scene, stage)  # noqa: B023 - called at once
            if sample is not None:
                found[name] = sample
        return found

    def _sample(self, name: str, play: Callable[[], Sample], scene: Scene | Solo, stage: Stage) -> Sample | None:
        """One sample, or None with the reason kept when it cannot be had: a failure of one spoils no other."""
        if name in self.gone:
            return None
        elapsed_s = time.monotonic() - self.began_t
        label = f"{elapsed_s:5.0f} s, round {stage.round + 1}, {scene.figures[0].measure}, {name}"
        try:
            sample = play()
        except tools.ToolError as error:
            say(f"{label}: {error}")
            self.failures[id(scene), name] = str(error).splitlines()[0]
            return None
        say(f"{label}: " + ", ".join(f"{key} {value:.4g}" for key, value in sample.items()))
        return sample

    def _play(self, scene: Scene, stage: Stage, name: str) -> Sample:
        with contextlib.ExitStack() as alone:
            router = self.up.get(name)
            if router is None or scene.fresh:
                try:
                    router = (alone if scene.fresh else self.stack).enter_context(running(name, self.mock))
                except tools.ToolError as error:
                    self.gone[name] = str(error).splitlines()[0]
                    raise
                if not scene.fresh:
                    self.up[name] = router
            return scene.play(stage, router)


def chosen(only: str, streams_count: int) -> list[Scene | Solo]:
    """Scenes with the figures whose name holds a text; names that tell a number of streams tell it."""
    every: list[Scene | Solo] = [*cpu.SCENES, *streams.SCENES, *decisions.SOLOS, *overload.SOLOS]
    found = []
    for scene in every:
        named = [
            replace(figure, measure=figure.measure.format(streams=f"{streams_count:,}")) for figure in scene.figures
        ]
        kept = tuple(figure for figure in named if only.lower() in figure.measure.lower())
        if kept:
            found.append(replace(scene, figures=kept))
    return found


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        prog="make bench-router", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names, both = [*peers.PEERS, "none"], " and ".join(peers.DEFAULT)
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds (default 5)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only rows whose measure holds this text")
    parser.add_argument("--peer", action="append", choices=names, help=f"may be repeated (default: {both})")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="what stdout gets")
    parser.add_argument("--streams", type=int, default=5000, help="streams where there are many (default 5000)")
    parser.add_argument(
        "--stream-seconds",
        type=float,
        default=60.0,
        help=f"how long they last in round 1 (then {SHORT_S:g}; default 60)",
    )
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    options.peer = [name for name in options.peer or peers.DEFAULT if name != "none"]
    return options


def main() -> int:
    """Measure, print, and write the page when everything was measured."""
    options = options_of(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs behind it with SIGINT ignored
    began, load_before = time.monotonic(), os.getloadavg()[0]
    scenes = chosen(options.only, options.streams)
    if not scenes:
        say(f"bench: no row holds {options.only!r}")
        return 2
    try:
        tools.build()
        processes.raise_file_limit(2 * options.streams + 1000)
        with contextlib.ExitStack() as stack:
            bench = Bench(options, stack.enter_context(tools.Mock()), stack)
            if not can_continue():
                bench.gone[CONTINUED] = "this version's fleet file has no serving.continuation"
            rows = bench.measure(scenes)
    except tools.ToolError as error:
        say(f"bench: {error}")
        return 2
    except KeyboardInterrupt:
        say("bench: interrupted; every process it started has ended")
        return 130
    facts = {
        "command": shlex.join(["make", "bench-router", f"BENCH_ARGS={shlex.join(sys.argv[1:])}"]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "rounds": options.rounds,
        "wall_s": round(time.monotonic() - began, 1),
        "machine": machine.machine(),
        "versions": machine.versions(options.peer),
        "load_average": [round(load_before, 2), round(os.getloadavg()[0], 2)],
    }
    print(json.dumps(table.document(rows, facts), indent=2) if options.format == "json" else table.text(rows, facts))
    if not options.only and options.rounds >= PAGE_ROUNDS and peers.REFERENCE in options.peer:
        table.write(rows, facts, PAGE)
        say(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
