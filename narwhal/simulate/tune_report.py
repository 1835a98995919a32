"""The report of a search, as text and as data."""

import statistics
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from narwhal.simulate.compare import shown
from narwhal.simulate.parameters import Parameter, Value, fragment, written
from narwhal.simulate.scenario import spread
from narwhal.simulate.tune import Candidate, Run, Tuned

TOP = 5
"""Candidates that the data list."""


def tuned_data(tuned: Tuned) -> dict[str, Any]:
    """The report as JSON."""
    best = sorted((c for c in tuned.tried), key=lambda c: (-len(c.gains), -c.gain))[:TOP]
    return {
        "policy": tuned.policy,
        "objective": "goodput" if tuned.goodput else "attainment",
        "parameters": [_parameter(parameter, tuned) for parameter in tuned.parameters],
        "search": {"runs": tuned.runs, "candidates": len(tuned.tried), "interrupted": tuned.interrupted},
        "tuned_on": _side(tuned.tuning_runs, tuned.default, tuned.best),
        "held_out": _side(tuned.held_out_runs, tuned.default_held_out, tuned.best_held_out),
        "best": dict(tuned.best.values),
        "holds_out": tuned.holds_out,
        "warnings": tuned.warnings,
        "candidates": [{"values": c.values, "gain": c.gain, "runs": len(c.gains)} for c in best],
    }


def _parameter(parameter: Parameter, tuned: Tuned) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "unit": parameter.unit,
        "about": parameter.about,
        "searched": list(parameter.choices) or [parameter.low, parameter.high],
        "default": parameter.default,
        "best": tuned.best.values.get(parameter.name, parameter.default),
    }


def _side(runs: Sequence[Run], default: Candidate, best: Candidate) -> dict[str, Any]:
    done = runs[: len(best.gains)]
    return {
        "runs": [{"traffic": run.prepared.name, "rate_rps": run.rate_rps, "seed": run.seed} for run in done],
        "default": _figures(default),
        "best": _figures(best),
        "gain": _spread(best.gains),
        "gain_by_run": best.gains,
    }


def _figures(candidate: Candidate) -> dict[str, Any]:
    moves = [measured.moves for measured in candidate.measured]
    return {
        **_spread([measured.value for measured in candidate.measured]),
        "moves": statistics.fmean(moves) if moves else None,
        "by_run": [measured.value for measured in candidate.measured],
    }


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    mean, least, largest = spread(values) if values else (None, None, None)
    return {"mean": mean, "least": least, "largest": largest}


def tuned_text(tuned: Tuned) -> str:
    """The report for people."""
    parameters = _grid("parameter", "now", "best", "searched")
    for parameter in tuned.parameters:
        best = tuned.best.values.get(parameter.name, parameter.default)
        parameters.add_row(
            parameter.name, _with_unit(parameter.default, parameter), _with_unit(best, parameter), parameter.searched
        )
    title = "goodput, requests/s" if tuned.goodput else "attainment"
    results = _grid(title, "now", "best", "gain", "better in", "moves")
    for name, runs, default, best_found in (
        ("tuned on", tuned.tuning_runs, tuned.default, tuned.best),
        ("held out", tuned.held_out_runs, tuned.default_held_out, tuned.best_held_out),
    ):
        results.add_row(f"{name}: {_traffic(runs)}", *_row(default, best_found, goodput=tuned.goodput))
    head = f"{tuned.policy}: {len(tuned.tried)} candidates in {tuned.runs} runs"
    parts = [
        head + (", stopped early" if tuned.interrupted else ""),
        "",
        shown(parameters, width=120),
        "",
        shown(results, width=140),
    ]
    parts += ["", *(f"warning: {warning}" for warning in tuned.warnings)] if tuned.warnings else []
    if tuned.best.values:
        parts += ["", "The best, as a part of the fleet file:", "", fragment(tuned.best.values)]
    return "\n".join(parts)


def _row(default: Candidate, best: Candidate, *, goodput: bool) -> list[str]:
    if not best.measured:
        return ["-"] * 5
    now, then = ([measured.value for measured in candidate.measured] for candidate in (default, best))
    form = ".2f" if goodput else ".3f"
    gains = [100 * gain for gain in best.gains] if goodput else best.gains
    better = f"{sum(gain > 0 for gain in best.gains)} of {len(best.gains)}"
    moves = " → ".join(f"{statistics.fmean(m.moves for m in c.measured):.0f}" for c in (default, best))
    gain = _mean(gains, "+.1f" if goodput else "+.3f") + (" %" if goodput else "")
    return [_mean(now, form), _mean(then, form), gain, better, moves]


def _mean(values: Sequence[float], form: str) -> str:
    """Mean [least, largest]."""
    mean, least, largest = spread(values)
    text = format(mean, form)
    return text if len(values) == 1 else f"{text} [{least:{form}}, {largest:{form}}]"


def _with_unit(value: Value, parameter: Parameter) -> str:
    return f"{written(value)} {parameter.unit}".rstrip()


def _traffic(runs: Sequence[Run]) -> str:
    names = list(dict.fromkeys(f"{run.prepared.name} at {run.rate_rps:.2f}/s" for run in runs))
    return f"{'; '.join(names)}; seeds {', '.join(str(seed) for seed in dict.fromkeys(run.seed for run in runs))}"


def _grid(first: str, *others: str) -> Table:
    grid = Table(box=None, pad_edge=False)
    grid.add_column(first)
    for name in others:
        grid.add_column(name, justify="right", no_wrap=True)
    return grid
