"""`narwhal profile`: measure how fast the engines are."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narwhal.cli.app import progress, verb
from narwhal.cli.output import CommandError, Problem, Result
from narwhal.cli.validate import opened_fleet

if TYPE_CHECKING:
    from narwhal.profiling import Built, Limits


@verb("profile")
def profile(
    fleet: Annotated[Path, typer.Argument(help="Fleet file; its engines must run, and be idle.")],
    engine: Annotated[list[str] | None, typer.Option(help="Only this engine; may be repeated.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Where profiles go; default: profiles.path, else profiles beside the file."
        ),
    ] = None,
    short: Annotated[bool, typer.Option("--short", help="Fewer cells, a coarser curve.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what was measured already.")] = False,
    idle_neighbours: Annotated[
        bool, typer.Option("--idle-neighbours", help="Leave engines on the same card idle while one is measured.")
    ] = False,
    no_handoffs: Annotated[bool, typer.Option("--no-handoffs", help="Leave out the handoffs between engines.")] = False,
    max_error: Annotated[
        float, typer.Option(min=0.001, help="Mean error in sample above which a curve is refused, as a share.")
    ] = 0.10,
    max_left_out: Annotated[
        float | None,
        typer.Option(min=0.001, help="The same for cells left out of the fit; default: 0.2, with --short 0.5."),
    ] = None,
) -> Result:
    """Measure prefill, decode and handoffs of running, idle engines, and write a profile for each contract.

    A sweep that is stopped goes on where it ended. A restart of the engines with the same launch keeps the profile.

    Example: narwhal profile fleet.yaml --short
    """
    from narwhal.profiling import Ask, EngineError, FitError, Limits

    expanded = opened_fleet(fleet)
    unknown = sorted(set(engine or ()) - {spec.id for spec in expanded.engines})
    if unknown:
        known = ", ".join(spec.id for spec in expanded.engines)
        raise CommandError(
            Problem("engine", f"the fleet has no engine {unknown[0]}", str(fleet), hint=f"it has {known}")
        )
    folder = out or expanded.profiles
    ask = Ask(expanded, folder, tuple(engine or ()), short, fresh, idle_neighbours, not no_handoffs)
    try:
        built = _run(ask)
    except KeyboardInterrupt:
        hint = "run it again: it goes on where it ended (--fresh measures all again)"
        text = "stopped; what was measured is kept"
        raise CommandError(Problem("stopped", text, hint=hint), status="interrupted") from None
    except EngineError as error:
        hint = "start the engines, and profile while no requests come; what was measured is kept"
        raise CommandError(Problem("engine", str(error), str(fleet), hint=hint), status="failed") from error
    except FitError as error:
        raise CommandError(Problem("fit", str(error), hint="leave out --short"), status="findings") from error
    # with five lengths, a curve without one of them is an extrapolation over a factor of four
    return _result(built, folder, Limits(max_error, max_left_out or (0.5 if short else 0.2)))


def _run(ask: Any) -> "list[Built]":
    import uvloop

    from narwhal.profiling import EngineError, FitError, profile_fleet

    try:
        return uvloop.run(profile_fleet(ask, progress().say))
    except BaseExceptionGroup as group:
        matched: BaseException | None = group.split((EngineError, FitError))[0]
        while isinstance(matched, BaseExceptionGroup):
            matched = matched.exceptions[0]
        if matched is None:
            raise
        raise matched from group


def _result(built: "list[Built]", folder: Path, limits: "Limits") -> Result:
    from narwhal.profiling import save_profile

    problems, artifacts, lines = [], [], []
    for one in built:
        refusals = [(curve, why) for curve in one.drawn if (why := curve.refused(limits))]
        lines += _summary(one)
        for curve, why in refusals:
            lines += ["", curve.picture()]
            problems.append(
                Problem(
                    "fit",
                    why,
                    hint="measure again on an idle machine (--fresh), or allow more: --max-error, --max-left-out",
                )
            )
        if not refusals:
            artifacts.append(str(save_profile(folder, one.profile)))
            lines.append(f"written to {artifacts[-1]}")
    if artifacts:
        lines += ["", "a router with profiles.path takes a new profile up when it, or the engine, starts again"]
    data = {"profiles": [one.profile.model_dump(mode="json", by_alias=True) for one in built]}
    status = "findings" if problems else "success"
    return Result(status, data, artifacts, problems, "\n".join(lines))


def _summary(one: "Built") -> list[str]:
    profile, measured = one.profile, one.profile.measured
    assert measured is not None
    lines = [
        f"{profile.name}: {', '.join(measured.engines)}, version {measured.version}",
        f"  prefill  {profile.prefill.a_s * 1e3:.3g} ms + {profile.prefill.b_s_per_token * 1e6:.3g} us a token + "
        f"{profile.prefill.c_s_per_token2 * 1e9:.3g} ns a token², at least {profile.prefill.t_min_s * 1e3:.3g} ms",
        f"  decode   {profile.decode.d0_s * 1e3:.3g} ms + {profile.decode.d1_s * 1e6:.3g} us a request + "
        f"{profile.decode.d2_s * 1e6:.3g} us a token of KV",
        f"  handoff  {profile.transfer.t0_s * 1e3:.3g} ms + {profile.transfer.bandwidth_bytes_per_s / 1e9:.3g} GB/s, "
        f"{profile.kv_bytes_per_token} B a token, room for {profile.kv_capacity_tokens} tokens",
    ]
    for curve in one.drawn:
        errors = curve.errors
        lines.append(
            f"  {curve.name} error: mean {errors.mean:.1%}, largest {errors.largest:.1%}, "
            f"left out {errors.leave_one_out:.1%}, {len(errors.residuals)} samples"
        )
    if measured.transfer is None:
        lines.append("  no handoff was measured: its curve and the KV bytes of a token are the prior's")
    lines += [f"  {engine} is {mean:+.0%} from the common curves" for engine, mean in one.outliers.items()]
    return lines
