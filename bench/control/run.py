"""`make bench-control`: the role policies side by side, on two cores, as a Markdown table.

Each point searches the best static split among its neighbours, then measures every policy: goodput by bisection, or
attainment at a fixed rate. Adaptive policies start from the best static split. Written to docs/performance.md,
between its markers, and as JSON beside it.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from points import CLAIRVOYANT_S, FIXED_LOAD, POLICIES, SEEDS, TRACE_SEEDS, Point, points

from narwhal.simulate import Ask, Outcome, Scenario, goodput, parse_policy, prepare, run, work_of

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- bench-control: begin -->", "<!-- bench-control: end -->"


@dataclass(frozen=True, slots=True)
class Job:
    """One policy, one seed, at one point."""

    point: Point
    policy: str
    seed: int
    search: bool
    load: float
    split: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """What a job found."""

    policy: str
    seed: int
    rate_rps: float
    goodput_rps: float | None
    attainment: float | None
    moves: int
    adapt_mean_s: float | None
    adapt_max_s: float | None
    wall_s: float
    """Seconds of a process that does nothing else."""


def scenario_of(point: Point, split: tuple[int, int] | None) -> tuple[Scenario, float]:
    """The scenario of a point, and the rate at which its fleet is full by fluid measure."""
    ask = Ask(
        trace=point.trace,
        mix=None if point.trace else point.traffic,
        seconds=point.seconds,
        curves="8b-h100",
        engines=point.engines,
        split=f"{split[0]}p{split[1]}d" if split else None,
        admission=point.admission,
    )
    prepared = prepare(ask)
    return prepared.scenario, prepared.full_rps


def work(job: Job) -> Done:
    """Run a job, in a process of its own."""
    began = time.perf_counter()
    scenario, full_rps = scenario_of(job.point, job.split)
    policy = parse_policy(job.policy)
    found = goodput(scenario, policy, job.seed, full_rps * 0.65) if job.search else None
    rate_rps = found or full_rps * job.load
    outcome: Outcome = run(scenario, policy, rate_rps, job.seed)
    adapt = outcome.score.adapt_s
    return Done(
        job.policy,
        job.seed,
        rate_rps,
        found,
        outcome.score.attainment,
        outcome.moves,
        statistics.fmean(adapt) if adapt else None,
        max(adapt, default=None),
        time.perf_counter() - began,
    )


def candidates(point: Point, *, full: bool) -> list[int]:
    """Prefill engines of the static splits to try: the best by fluid measure and its neighbours, or all."""
    n = point.engines
    scenario, full_rps = scenario_of(point, None)
    traffic = scenario.traffic(full_rps, SEEDS[0])
    bodies = list(zip(traffic.prompts, traffic.outputs, strict=True))
    best = round(n * work_of(bodies, scenario.engines[0].curves, scenario.settings.slo.tpot_s).prefill_share)
    return [p for p in range(1, n) if full or abs(p - best) <= 1]


def best_static(pool: ProcessPoolExecutor, point: Point, *, full: bool) -> tuple[tuple[int, int], list[Done]]:
    """The best static split and its results: all candidates at one seed, then the best two at all seeds."""
    n, seeds = point.engines, point.seeds
    jobs = [
        Job(point, f"static:{p}p{n - p}d", seeds[0], point.goodput, FIXED_LOAD) for p in candidates(point, full=full)
    ]
    first = sorted(pool.map(work, jobs), key=_worth, reverse=True)[:2]
    rest = [Job(point, done.policy, seed, point.goodput, FIXED_LOAD) for done in first for seed in seeds[1:]]
    results = [*first, *pool.map(work, rest)]
    name = max(
        (done.policy for done in first), key=lambda policy: _mean(_worth(d) for d in results if d.policy == policy)
    )
    prefill = int(name.removeprefix("static:").split("p")[0])
    return (prefill, n - prefill), [done for done in results if done.policy == name]


def _worth(done: Done) -> float:
    return done.goodput_rps if done.goodput_rps is not None else done.attainment or 0.0


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(list(values))


def measure(pool: ProcessPoolExecutor, point: Point, say: Callable[[str], None], *, full: bool) -> dict[str, Any]:
    """All policies at a point."""
    began = time.perf_counter()
    split, static = best_static(pool, point, full=full)
    jobs = [
        Job(point, policy, seed, point.goodput, FIXED_LOAD, split) for policy in point.policies for seed in point.seeds
    ]
    regret = pool.map(work, _beside_clairvoyant(point, static[0].policy, split)) if point.clairvoyant else ()
    results = [*static, *pool.map(work, jobs)]
    rollouts = list(regret)
    rollout = {done.policy: asdict(done) for done in rollouts}
    say(f"{point.name}: {time.perf_counter() - began:.0f} s")
    by_policy: dict[str, list[Done]] = {}
    for done in results:
        by_policy.setdefault(done.policy, []).append(done)
    return {
        "point": point.name,
        "goodput": point.goodput,
        "static": static[0].policy,
        "policies": {policy: [asdict(done) for done in dones] for policy, dones in by_policy.items()},
        "rollout": rollout,
        "cpu_s": sum(done.wall_s for done in (*results, *rollouts)),
    }


def _beside_clairvoyant(point: Point, static: str, split: tuple[int, int]) -> list[Job]:
    """The rollout, and what it is compared with, on one short run: the slowest first."""
    short = replace(point, seconds=min(point.seconds, CLAIRVOYANT_S))
    policies = ("clairvoyant", static, "reactive", "projection")
    return [Job(short, policy, SEEDS[0], True, FIXED_LOAD, split) for policy in policies]


def line(result: dict[str, Any]) -> str:
    """A row of the table: the ratio to the best static split, or attainment; least and largest; moves."""
    cells = [result["point"]]
    static = result["policies"][result["static"]]
    base = {done["seed"]: done["goodput_rps"] for done in static}
    if result["goodput"]:
        cells.append(f"{_mean(base.values()):.1f} req/s ({result['static'].removeprefix('static:')})")
    else:
        cells.append(f"{_mean(d['attainment'] for d in static):.3f} ({result['static'].removeprefix('static:')})")
    for policy in POLICIES:
        dones = result["policies"].get(policy)
        cells.append(_cell(dones, base, searched=result["goodput"]) if dones else "")
    cells.append(_rollout_cell(result["rollout"], result["static"]) if result["rollout"] else "")
    return "| " + " | ".join(cells) + " |"


def _cell(dones: list[dict[str, Any]], base: dict[int, float], *, searched: bool) -> str:
    values = [d["goodput_rps"] / base[d["seed"]] if searched else d["attainment"] for d in dones]
    digits = 2 if searched else 3
    text = f"{_mean(values):.{digits}f}"
    if len(values) > 1:
        text += f" [{min(values):.{digits}f}, {max(values):.{digits}f}]"
    text += f" ({_mean(d['moves'] for d in dones):.0f}m"
    adapt = [d["adapt_mean_s"] for d in dones if d["adapt_mean_s"] is not None]
    return text + (f", {_mean(adapt):.0f} s)" if adapt else ")")


def _rollout_cell(rollout: dict[str, dict[str, Any]], static: str) -> str:
    """The clairvoyant's ratio, and the share of its goodput that each of ours reaches on the same short run."""
    best, base = rollout["clairvoyant"]["goodput_rps"], rollout[static]["goodput_rps"]
    ours = ", ".join(f"{policy} {rollout[policy]['goodput_rps'] / best:.0%}" for policy in ("reactive", "projection"))
    return f"{best / base:.2f} ({ours} of it)"


def _words(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, seeds))


def document(results: list[dict[str, Any]], wall_s: float) -> str:
    """The part of docs/performance.md that this bench owns."""
    head = ["set-up", "best static", *POLICIES, "clairvoyant"]
    rows = "\n".join(line(result) for result in results)
    busy_s = sum(result["cpu_s"] for result in results)
    return f"""{BEGIN}
Simulated, curves `8b-h100`, TTFT 2 s up to 8,192 prompt tokens and 5 s beyond, TPOT 50 ms, admission off unless
said, first 30 s unscored. Seeds: {_words(SEEDS)} (nothing was tuned with them); for traces (*.csv)
{_words(TRACE_SEEDS)} alone; the clairvoyant's column is a run of its own of {SEEDS[0]} alone and {CLAIRVOYANT_S:.0f} s.
Where the best static split has req/s, the others are goodput ratios to it; elsewhere all are attainment at
{FIXED_LOAD:.0%} of the fluid capacity. Mean [least, largest over seeds] (moves, mean time to adapt).
Made by `make bench-control`: {wall_s / 60:.0f} minutes; all simulations one after the other take {busy_s / 60:.0f}.

| {" | ".join(head)} |
|{"---|" * len(head)}
{rows}
{END}"""


def write(text: str, path: Path) -> None:
    """Put the table between its markers, or at the end of the page."""
    page = path.read_text() if path.is_file() else "# Performance\n"
    if BEGIN in page and END in page:
        page = page[: page.index(BEGIN)] + text + page[page.index(END) + len(END) :]
    else:
        page = page.rstrip("\n") + "\n\n## Role policies\n\n" + text + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page)


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two points, a few minutes")
    parser.add_argument("--full", action="store_true", help="goodput at every point, hours")
    parser.add_argument("--only", default="", help="only points whose name holds this text")
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "performance.md")
    parser.add_argument("--resume", action="store_true", help="keep the points that the JSON beside --out has already")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    options = parser.parse_args()
    say = partial(print, file=sys.stderr, flush=True)
    began = time.perf_counter()
    kept_path = options.out.with_name("performance-control.json")
    kept = json.loads(kept_path.read_text()) if options.resume and kept_path.is_file() else []
    had = {result["point"]: result for result in kept}
    results = []
    with ProcessPoolExecutor(options.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for point in points(options.traces, quick=options.quick, full=options.full):
            if options.only in point.name:
                results.append(had.get(point.name) or measure(pool, point, say, full=options.full))
                print(line(results[-1]), flush=True)
                kept_path.write_text(json.dumps(results, indent=1) + "\n")
    write(document(results, time.perf_counter() - began), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
