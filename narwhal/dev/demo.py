"""The demo: traffic that turns, on a fleet whose roles follow it and on one whose roles stay, at the same time.

Both fleets are real processes, with the same engines, the same start, the same seeds and the same requests at the
same moments. They share this machine's cores, so what one of them loses to the machine the other loses too.
"""

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from narwhal.control.curves import Curves
from narwhal.dev.instance import Instance
from narwhal.dev.interrupts import SIGNALS, cleaned_up, ends_like_ctrl_c, undisturbed
from narwhal.dev.lifecycle import Say, Up, up
from narwhal.dev.process import stop_recorded
from narwhal.dev.report import DemoMove, DemoReport, report
from narwhal.dev.template import FleetPlan, fleet_yaml
from narwhal.dev.traffic import turning_phases
from narwhal.dev.workplace import MOVING, workplace
from narwhal.diagnose import AdminClient, UnreachableError
from narwhal.fleet import Expanded, load_profile
from narwhal.measure import Load, Phase, Target, poisson, recent_attainment

RECENT_S = 10.0
_SAMPLE_S = 0.5
_STOP_DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True)
class View:
    """What the live picture shows."""

    t_s: float
    """Seconds since the traffic began."""
    seconds: float
    phase: str
    state: dict[str, Any] | None
    """The `RouterState` of the fleet that moves; None while its router did not answer."""
    moves: Sequence[DemoMove]
    attainment: float | None
    """Of what ended in the last `RECENT_S` on the fleet that moves."""
    attainment_static: float | None
    in_flight: int
    in_flight_static: int


@dataclass(slots=True)
class _Run:
    """One fleet under load."""

    fleet: Expanded
    up: Up
    load: Load
    admin: AdminClient
    moves: list[DemoMove] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)


def run_demo(
    *,
    seconds: float,
    seed: int,
    engines: int,
    say: Say,
    show: Callable[[View], None],
    serve_on: Callable[[DemoReport], None] | None = None,
) -> DemoReport:
    """Run the demo and clean up, whatever happens: no process and no file of it stays.

    `show` gets a picture twice a second. `serve_on` is called with the report while the fleet that moves still
    serves, and may wait there. Ctrl-C, SIGTERM and a closed terminal raise `KeyboardInterrupt` once all is cleaned up.
    """
    prefill = engines // 2
    phases = turning_phases(Curves.from_profile(load_profile("demo")), engines, seconds)
    with ends_like_ctrl_c(), cleaned_up() as stack:
        folder = stack.enter_context(workplace())
        moving, static = (
            stack.enter_context(_fleet(folder, FleetPlan(name, engines, prefill, controller=moves), say))
            for name, moves in ((MOVING, True), ("static", False))
        )
        schedule = poisson(phases, seed)
        say(f"sending {len(schedule)} requests to each fleet in {seconds:g} s")
        runs = [_run(expanded, started, schedule, seed) for expanded, started in (moving, static)]
        uvloop.run(_play(runs, phases, show))
        result = report(
            phases,
            runs[0].load.outcomes,
            runs[1].load.outcomes,
            runs[0].fleet,
            runs[0].moves,
            runs[0].up.url,
        )
        if serve_on is not None:
            serve_on(result)
        return result


@contextmanager
def _fleet(folder: Path, plan: FleetPlan, say: Say) -> Iterator[tuple[Expanded, Up]]:
    """A running fleet in `folder`; stopped at the end."""
    instance = Instance(folder / plan.name)
    instance.create("simulated", plan.engines, fleet_yaml(plan))
    started: Up | None = None
    try:
        say(f"fleet {plan.name}: {plan.engines} simulated engines and a router")
        started = up(instance, lambda line: None, die_with_parent=True)
        yield instance.expanded(), started
    finally:
        with undisturbed():
            stop_recorded(instance.run, deadline_s=_STOP_DEADLINE_S)
            for handle in started.handles if started else ():
                handle.wait()


def _run(fleet: Expanded, started: Up, schedule: Sequence[Any], seed: int) -> _Run:
    router = fleet.routers[0]
    target = Target(router.bind, router.port, fleet.fleet.model.name)
    return _Run(fleet, started, Load(target, schedule, seed=seed), AdminClient(started.admin_url))


async def _play(runs: Sequence[_Run], phases: Sequence[Phase], show: Callable[[View], None]) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        task.cancel()

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        loop.add_signal_handler(number, interrupt)
    try:
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(_watch(runs, phases, show))
            for load in [group.create_task(run.load.run()) for run in runs]:
                await load
            watcher.cancel()
        await _sample(runs[0])
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


async def _watch(runs: Sequence[_Run], phases: Sequence[Phase], show: Callable[[View], None]) -> None:
    seconds = sum(phase.seconds for phase in phases)
    while True:
        state = await _sample(runs[0])
        t_s = runs[0].load.elapsed_s()
        recent = [recent_attainment(run.load.outcomes, run.fleet.fleet.slo, t_s - RECENT_S) for run in runs]
        show(
            View(
                t_s=t_s,
                seconds=seconds,
                phase=_phase_at(phases, t_s),
                state=state,
                moves=runs[0].moves,
                attainment=recent[0],
                attainment_static=recent[1],
                in_flight=runs[0].load.in_flight,
                in_flight_static=runs[1].load.in_flight,
            )
        )
        await asyncio.sleep(_SAMPLE_S)


async def _sample(run: _Run) -> dict[str, Any] | None:
    """The router's state, and its new moves appended to `run.moves`, dated by their age on the router's clock."""
    try:
        state = await asyncio.to_thread(run.admin.state)
        document = await asyncio.to_thread(run.admin.moves)
    except UnreachableError:
        return None
    for decision in document["moves"]:
        if decision["outcome"] == "moved" and decision["id"] not in run.seen:
            run.seen.add(decision["id"])
            at_s = round(run.load.elapsed_s() - (document["now_t"] - decision["t"]), 1)
            run.moves += [
                DemoMove(at_s, move["engine"], move["source"], move["target"], decision["reason"], decision["id"])
                for move in decision["moves"]
            ]
    return state


def _phase_at(phases: Sequence[Phase], t_s: float) -> str:
    for phase in phases:
        t_s -= phase.seconds
        if t_s < 0:
            return phase.name
    return "the last answers"
