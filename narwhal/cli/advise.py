"""`narwhal advise`: should prefill and decode be on separate engines?"""

import os
from pathlib import Path
from typing import Annotated

import typer

from narwhal.cli import simulate_options as o
from narwhal.cli.app import progress, verb
from narwhal.cli.output import CommandError, Problem, Result
from narwhal.cli.simulate import room_problems, seed_numbers


@verb("advise", short_help="Should I disaggregate? Colocated, split and moving roles, on your profiles and traffic.")
def advise(
    fleet: o.FleetArgument = None,
    trace: o.TraceOption = None,
    mix: o.MixOption = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", metavar="NAME|FILE", help="How fast the engines are; default: as the fleet file keeps it."
        ),
    ] = None,
    engines: o.EnginesOption = None,
    rate: o.RateOption = None,
    seconds: o.SecondsOption = None,
    compress: o.CompressOption = 1.0,
    bodies: o.BodiesOption = None,
    admission: o.AdmissionOption = None,
    seeds: o.SeedsOption = "11,12,13",
    budget_s: Annotated[
        float, typer.Option("--budget-s", metavar="SECONDS", min=1, help="Time for it; what is left out then is said.")
    ] = 600.0,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, max=256, help="Runs at a time; default: one for each core.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Also write the Advice document here.")
    ] = None,
) -> Result:
    """Compare colocated engines, every static split and roles that follow the traffic, in simulation.

    Needed: one of --trace and --mix; and a fleet file, or --profile and --engines. The answer says which of them wins
    at 90 % attainment, by how much and how certainly, how many engines each needs for the rate, and what would change
    the answer. Differences within chance or within the simulator's own error are "cannot tell", and colocated engines,
    the simpler ones, are then recommended. Exit code 0 whatever the answer is.

    Example: narwhal advise fleet.yaml --trace journal.jsonl

    Example: narwhal advise --profile 8b-h100 --engines 4 --mix turning:code,reas:60 --budget-s 120
    """
    from narwhal import advise as room
    from narwhal.documents import write_atomically
    from narwhal.simulate import Ask

    if fleet is not None and engines is not None:
        hint = "leave out --engines, or the fleet file; how many engines would be needed is searched anyway"
        raise CommandError(Problem("usage", "--engines is for a run without a fleet file", hint=hint))
    ask = Ask(
        fleet=fleet,
        trace=trace,
        mix=mix,
        bodies=bodies,
        seconds=seconds if seconds is not None or trace is not None else room.SECONDS,
        compress=compress,
        curves=profile,
        engines=engines,
        admission=admission and admission.value,
    )
    asked = room.AdviseAsk(ask, rate, seed_numbers(seeds), budget_s, processes or len(os.sched_getaffinity(0)))
    with room_problems("narwhal advise --help"):
        advice = room.advise(asked, progress().say)
    if out is not None:
        write_atomically(out, advice.model_dump_json(by_alias=True, indent=2) + "\n")
    data = advice.model_dump(mode="json", by_alias=True)
    return Result(data={"advice": data}, artifacts=[str(out)] if out is not None else [], text=room.advice_text(advice))
