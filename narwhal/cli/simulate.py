"""`narwhal simulate`: what policies would make of traffic, decided by the code that serves."""

from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narwhal.cli.app import progress, verb
from narwhal.cli.output import CommandError, Problem, Result
from narwhal.cli.validate import source_problem

if TYPE_CHECKING:
    from collections.abc import Iterator


class Admission(StrEnum):
    """How requests are admitted."""

    open = "open"
    predictive = "predictive"


@contextmanager
def _problems() -> "Iterator[None]":
    """Errors of the room as problems of the command line."""
    from narwhal.fleet import FleetError, ProfileError, SourceError
    from narwhal.simulate import PlotError, PolicyError, ReplayError, TraceError, TrafficError

    try:
        yield
    except FleetError as error:
        found = [Problem(f.id, f.message, f.file, f.line, f.column, f.field, f.hint) for f in error.findings]
        raise CommandError(*found) from error
    except SourceError as error:
        raise CommandError(source_problem(error)) from error
    except (ProfileError, PolicyError, TraceError, TrafficError, PlotError, ReplayError) as error:
        code = type(error).__name__.removesuffix("Error").lower()
        raise CommandError(Problem(code, str(error), hint="narwhal simulate --help")) from error


@verb("simulate")
def simulate(
    fleet: Annotated[
        Path | None, typer.Argument(help="Fleet file; without it, --curves and --engines are needed.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Policies, separated by commas; default: reactive,static.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Traffic of a trace: Azure 2023, BurstGPT or ServeGen CSV, Mooncake JSONL, own journal."),
    ] = None,
    mix: Annotated[
        str | None,
        typer.Option(metavar="MIX", help="Synthetic traffic instead of a trace, such as turning:code,reas:60."),
    ] = None,
    bodies: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of the Azure 2023 files to draw code and conv from.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Requests per second; default: the trace's, else 70 % of what fits.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=40, help="Length; default: the whole trace, else 600.")] = None,
    compress: Annotated[float, typer.Option(min=0.001, help="Run the trace this many times as fast.")] = 1.0,
    seeds: Annotated[str, typer.Option(metavar="NUMBERS", help="Seeds, separated by commas.")] = "11,12,13",
    goodput: Annotated[
        bool, typer.Option("--goodput", help="Also search the highest rate at which 90 % meet both targets.")
    ] = False,
    curves: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="Engine curves: a shipped profile's name, or a file.")
    ] = None,
    engines: Annotated[
        int | None, typer.Option(min=2, max=256, help="Number of engines, without a fleet file.")
    ] = None,
    split: Annotated[str | None, typer.Option(metavar="SPLIT", help="Split at the start, such as 5p3d.")] = None,
    admission: Annotated[Admission | None, typer.Option(help="Admission; default: the fleet file's.")] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            help="A router's events.jsonl: are its decisions reproduced? With --policy: what would others have done?"
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write split and attainment over time to this picture (needs the plots extra).")
    ] = None,
) -> Result:
    """Compare policies on simulated engines.

    Needed: one of --trace, --mix and --replay; except with --replay also a fleet file, or --curves and --engines.

    Policies: static, static:3p5d, colocated, colocated:512 (chunk), arrow, coldswap:60 (seconds of a move),
    reactive, projection, clairvoyant.
    The first 30 seconds are not scored; attainment counts all offered requests.

    Example: narwhal simulate --curves 8b-h100 --engines 8 --mix turning:code,reas:60 --policy static:5p3d,projection
    """
    from narwhal import simulate as room

    if fleet is not None and engines is not None:
        hint = "leave out --engines, or the fleet file"
        raise CommandError(Problem("usage", "--engines is for a run without a fleet file", hint=hint))
    with _problems():
        if plot is not None:
            room.check_plot(plot)
        if replay is not None and policy is None:
            return _replayed(replay)
        if replay is not None:
            scenario, recorded_rps = room.recorded_scenario(replay)
            prepared = room.Prepared(replay.name, scenario, recorded_rps, recorded_rps)
        else:
            ask = room.Ask(
                fleet, trace, mix, bodies, seconds, compress, curves, engines, split, admission and admission.value
            )
            prepared = room.prepare(ask)
        run_rps = rate or prepared.rate_rps
        results = room.compare(
            prepared.scenario,
            [room.parse_policy(text.strip()) for text in (policy or "reactive,static").split(",")],
            _seeds(seeds),
            rate_rps=run_rps,
            guess_rps=prepared.full_rps if goodput else None,
            say=progress().say,
        )
        if plot is not None:
            room.draw(results, plot)
    count = len(prepared.scenario.engines)
    reference = results.get("clairvoyant")
    data: dict[str, Any] = {
        "policies": {name: figures.data(reference) for name, figures in results.items()},
        "run": {"traffic": prepared.name, "rate_rps": run_rps, "engines": count},
    }
    title = f"{prepared.name} at {run_rps:.2f} requests/s on {count} engines"
    return Result(data=data, artifacts=[str(plot)] if plot else [], text=room.table(results, title))


def _replayed(path: Path) -> Result:
    """Run a journal's events through control again."""
    from narwhal import simulate as room

    report = room.replay(path)
    text = f"{report.events} events, {report.decisions} decisions, {report.different} different" + "".join(
        f"\n  {line}" for line in report.differences
    )
    return Result("success" if not report.different else "findings", data=report.data(), text=text)


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise CommandError(Problem("usage", f"--seeds {text!r}: write whole numbers such as 11,12,13")) from error
