"""What `--tune` was asked: traffic to tune on and to report on, checked to have nothing in common."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from narwhal.simulate.mixes import KINDS
from narwhal.simulate.parameters import TuneError, parse_parameter
from narwhal.simulate.policies import parse_policy
from narwhal.simulate.prepare import Ask, Prepared, prepare
from narwhal.simulate.tune import Run, Tuned, tune

HELD_OUT_SEED = 21
"""The first seed of the report when none is named."""


@dataclass(frozen=True, slots=True)
class TuneAsk:
    """The questions of one `narwhal simulate --tune`."""

    ask: Ask
    parameters: Sequence[str]
    """Each `controller.KEY=LOW..HIGH`, `controller.KEY=A,B`, or a key alone."""
    tune_on: Sequence[str]
    """Mixes, traces and seeds; what is not said comes from `ask` and `seeds`."""
    report_on: Sequence[str]
    seeds: Sequence[int]
    policy: str | None = None
    """`reactive` or `projection`; None: the fleet file's."""
    rate_rps: float | None = None
    budget: int = 60
    """Runs of the search."""
    goodput: bool = False


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Mixes, traces and seeds."""

    asks: list[Ask]
    seeds: list[int]


def answer(asked: TuneAsk, say: Callable[[str], None]) -> Tuned:
    """Search and report. Raises `TuneError` and what `prepare` raises."""
    base = [asked.ask] if asked.ask.mix or asked.ask.trace else []
    tuning = _traffic(asked.tune_on, _Traffic(base, list(asked.seeds)), asked.ask)
    if not tuning.asks:
        raise TuneError("nothing to tune on: give --mix, --trace, or --tune-on with a mix or a trace")
    fresh = [seed for seed in range(HELD_OUT_SEED, HELD_OUT_SEED + 2 * len(tuning.seeds)) if seed not in tuning.seeds]
    report = _traffic(asked.report_on, _Traffic(tuning.asks, fresh[: len(tuning.seeds)]), asked.ask)
    known: dict[Ask, Prepared] = {}
    tuning_runs = _runs(tuning, asked.rate_rps, known)
    held_out_runs = _runs(report, asked.rate_rps, known)
    _nothing_in_common(tuning_runs, held_out_runs)
    controller = tuning_runs[0].prepared.scenario.settings.controller
    name = asked.policy or controller.policy
    if name not in ("reactive", "projection"):
        raise TuneError(f"--policy {name!r} has no parameters to tune; there are reactive, projection")
    parameters = [parse_parameter(text, controller) for text in asked.parameters]
    names = [parameter.name for parameter in parameters]
    if len(set(names)) < len(names):
        raise TuneError(f"--tune names {max(names, key=names.count)} twice")
    return tune(
        parse_policy(name),
        parameters,
        tuning_runs,
        held_out_runs,
        budget=asked.budget,
        goodput=asked.goodput,
        say=say,
    )


def _traffic(texts: Sequence[str], default: _Traffic, ask: Ask) -> _Traffic:
    """The traffic that some options name: numbers are seeds, what begins as a mix is one, the rest are traces."""
    asks: list[Ask] = []
    seeds: list[int] = []
    for text in texts:
        if re.fullmatch(r"\d+(,\d+)*", text):
            seeds += [int(part) for part in text.split(",")]
        elif text.partition(":")[0] in KINDS:
            asks.append(replace(ask, mix=text, trace=None))
        else:
            asks.append(replace(ask, mix=None, trace=Path(text)))
    return _Traffic(asks or default.asks, list(dict.fromkeys(seeds)) or default.seeds)


def _runs(traffic: _Traffic, rate_rps: float | None, known: dict[Ask, Prepared]) -> list[Run]:
    """Each traffic with each seed, seed by seed. A trace at its own rate is the same with every seed: one run."""
    runs: list[Run] = []
    for place, seed in enumerate(traffic.seeds):
        for ask in traffic.asks:
            if ask not in known:
                known[ask] = prepare(ask)
            seeded = ask.trace is None or rate_rps is not None
            if seeded or place == 0:
                runs.append(Run(known[ask], rate_rps or known[ask].rate_rps, seed))
    return runs


def _nothing_in_common(tuning: Sequence[Run], held_out: Sequence[Run]) -> None:
    """Raise `TuneError` when requests that choose the parameters would also judge them."""
    for one in tuning:
        for other in held_out:
            same = one.prepared is other.prepared and one.rate_rps == other.rate_rps
            if same and one.seed == other.seed:
                raise TuneError(f"{one.name} is in --tune-on and in --report-on: name other seeds for one of them")
            if same and one.prepared.own_arrivals and one.rate_rps == one.prepared.rate_rps:
                text = f"{one.prepared.name} brings its own arrivals, the same with every seed: it cannot judge what it"
                raise TuneError(f"{text} chose; name another trace or a mix with --report-on, or another --rate")
