"""`narwhal simulate`: what policies would make of traffic, decided by the code that serves."""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from narwhal.cli import simulate_options as o
from narwhal.cli.app import progress, verb
from narwhal.cli.output import CommandError, Problem, Result
from narwhal.cli.validate import source_problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from narwhal.simulate import Ask, Prepared


@contextmanager
def room_problems(help_command: str) -> "Iterator[None]":
    """Errors of the simulation's room as problems of the command line."""
    from narwhal.advise import AdviseError
    from narwhal.fleet import FleetError, ProfileError, SourceError
    from narwhal.simulate import PlotError, PolicyError, ReplayError, TraceError, TrafficError, TuneError

    try:
        yield
    except FleetError as error:
        found = [Problem(f.id, f.message, f.file, f.line, f.column, f.field, f.hint) for f in error.findings]
        raise CommandError(*found) from error
    except SourceError as error:
        raise CommandError(source_problem(error)) from error
    except (
        ProfileError,
        PolicyError,
        TraceError,
        TrafficError,
        PlotError,
        ReplayError,
        TuneError,
        AdviseError,
    ) as error:
        code = type(error).__name__.removesuffix("Error").lower()
        raise CommandError(Problem(code, str(error), hint=help_command)) from error


@verb("simulate")
def simulate(
    fleet: o.FleetArgument = None,
    policy: o.PolicyOption = None,
    trace: o.TraceOption = None,
    mix: o.MixOption = None,
    bodies: o.BodiesOption = None,
    rate: o.RateOption = None,
    seconds: o.SecondsOption = None,
    compress: o.CompressOption = 1.0,
    seeds: o.SeedsOption = "11,12,13",
    goodput: o.GoodputOption = False,
    curves: o.CurvesOption = None,
    engines: o.EnginesOption = None,
    split: o.SplitOption = None,
    admission: o.AdmissionOption = None,
    prior: o.PriorOption = None,
    replay: o.ReplayOption = None,
    plot: o.PlotOption = None,
    tune: o.TuneOption = None,
    tune_on: o.TuneOnOption = None,
    report_on: o.ReportOnOption = None,
    budget: o.BudgetOption = 60,
) -> Result:
    """Compare policies on simulated engines, or tune the controller's parameters.

    Needed: one of --trace, --mix and --replay; except with --replay also a fleet file, or --curves and --engines.

    Policies: static, static:3p5d, colocated, colocated:512 (chunk), arrow, coldswap:60 (seconds of a move),
    reactive, projection, clairvoyant.
    The first 30 seconds are not scored; attainment counts all offered requests.

    Example: narwhal simulate --curves 8b-h100 --engines 8 --mix turning:code,reas:60 --policy static:5p3d,projection

    Example: narwhal simulate fleet.yaml --mix turning:code,reas:60 --tune controller.reactive.act_at=0.5..1
    """
    from narwhal import simulate as room

    _together(fleet=fleet, engines=engines, replay=replay, plot=plot, tune=tune, tune_on=tune_on, report_on=report_on)
    if replay is not None:
        _recorded_alone(
            FLEET=fleet,
            trace=trace,
            mix=mix,
            bodies=bodies,
            seconds=seconds,
            curves=curves,
            engines=engines,
            split=split,
            admission=admission,
            prior=prior,
        )
    with room_problems("narwhal simulate --help"):
        if plot is not None:
            room.check_plot(plot)
        if replay is not None and policy is None:
            return _replayed(replay)
        ask = room.Ask(
            fleet, trace, mix, bodies, seconds, compress, curves, engines, split, admission and admission.value, prior
        )
        if tune:
            return _tuned(ask, tune, tune_on or [], report_on or [], seed_numbers(seeds), policy, rate, budget, goodput)
        prepared = _recorded(replay) if replay is not None else room.prepare(ask)
        return _compared(prepared, policy or "reactive,static", seed_numbers(seeds), rate, goodput, plot)


def _together(**given: Any) -> None:
    """Raise `CommandError` for options that exclude or need each other."""

    def refuse(message: str, hint: str) -> None:
        raise CommandError(Problem("usage", message, hint=hint))

    if given["fleet"] is not None and given["engines"] is not None:
        refuse("--engines is for a run without a fleet file", "leave out --engines, or the fleet file")
    if given["tune"]:
        for name in ("replay", "plot"):
            if given[name] is not None:
                refuse(f"--{name} does not go with --tune", f"leave out --{name}")
    elif given["tune_on"] or given["report_on"]:
        refuse("--tune-on and --report-on need --tune", "add --tune controller.KEY=LOW..HIGH")


def _recorded_alone(**given: Any) -> None:
    """Raise `CommandError` for what a recording says itself."""
    named = [name if name.isupper() else f"--{name}" for name, value in given.items() if value is not None]
    if named:
        hint = f"leave out {', '.join(named)}; --policy, --rate and --seeds go with --replay"
        raise CommandError(
            Problem("usage", f"--replay brings its own fleet and traffic: {named[0]} has no effect", hint=hint)
        )


def _compared(
    prepared: "Prepared", policies: str, seeds: list[int], rate: float | None, goodput: bool, plot: Path | None
) -> Result:
    """Run policies side by side."""
    from narwhal import simulate as room

    run_rps = rate or prepared.rate_rps
    results = room.compare(
        prepared.scenario,
        [room.parse_policy(text.strip()) for text in policies.split(",")],
        seeds,
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


def _tuned(
    ask: "Ask",
    parameters: list[str],
    tune_on: list[str],
    report_on: list[str],
    seeds: list[int],
    policy: str | None,
    rate: float | None,
    budget: int,
    goodput: bool,
) -> Result:
    """Search parameters of the controller."""
    from narwhal import simulate as room

    asked = room.TuneAsk(ask, parameters, tune_on, report_on, seeds, policy, rate, budget, goodput)
    tuned = room.answer(asked, progress().say)
    status = "interrupted" if tuned.interrupted else "success"
    return Result(status, data={"tune": room.tuned_data(tuned)}, text=room.tuned_text(tuned))


def _recorded(path: Path) -> "Prepared":
    """Recorded traffic, for other policies to serve."""
    from narwhal import simulate as room

    scenario, recorded_rps = room.recorded_scenario(path)
    return room.Prepared(path.name, scenario, recorded_rps, recorded_rps)


def _replayed(path: Path) -> Result:
    """Run a journal's events through control again."""
    from narwhal import simulate as room

    report = room.replay(path)
    return Result("success" if not report.different else "findings", data=report.data(), text=report.text())


def seed_numbers(text: str) -> list[int]:
    """The numbers of `--seeds`. Raises `CommandError`."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise CommandError(Problem("usage", f"--seeds {text!r}: write whole numbers such as 11,12,13")) from error
