"""`advise`: from what a user asks to an `Advice` document."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from narwhal import simulate
from narwhal.advise.answer import answered
from narwhal.advise.case import Base
from narwhal.advise.certainty import BLOCK_S
from narwhal.advise.document import Advice
from narwhal.advise.runs import runner
from narwhal.advise.study import Study
from narwhal.advise.swing import swing_of
from narwhal.fleet import open_fleet
from narwhal.simulate import Ask, CurvesSource, Prepared, known_curves

MOST_ENGINES = 64
"""Engines up to which is searched, or twice the fleet's."""
FEW_BLOCKS = 10
"""Blocks of traffic below which intervals are rough."""
SECONDS = 300.0
"""Length of a mix, unless it is said: half of what `narwhal simulate` takes, as there are many runs."""
SOURCES: dict[CurvesSource, str] = {
    "measured": "measured on the fleet's engines",
    "simulated": "what its simulated engines play",
    "prior": "the prior that the fleet file names, not measured on its engines",
}


class AdviseError(ValueError):
    """A question that cannot be answered; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class AdviseAsk:
    """The questions of one `narwhal advise`."""

    ask: Ask
    rate_rps: float | None = None
    """Requests per second; None: the trace's own, or 70 % of what fits by fluid measure."""
    seeds: Sequence[int] = (11, 12, 13)
    budget_s: float = 600.0
    processes: int = 1


def advise(asked: AdviseAsk, say: Callable[[str], None]) -> Advice:
    """Whether to disaggregate. Raises `AdviseError` and what `narwhal.simulate.prepare` raises."""
    if asked.ask.fleet is None and (asked.ask.curves is None or asked.ask.engines is None):
        raise AdviseError("name a fleet file, or give --profile and --engines, such as --profile 8b-h100 --engines 4")
    prepared = simulate.prepare(asked.ask)  # by its room: `prepare` is also the name of a module there
    base = _base(prepared, asked)
    if len(base.engines) < 2:
        raise AdviseError(
            "the fleet has one engine: prefill and decode cannot be separated; --engines 2 asks about two"
        )
    sources, own = _profiles(asked.ask)
    swing = swing_of(base)
    with runner(base, asked.budget_s, asked.processes) as running:
        study = Study(running, asked.seeds, max(MOST_ENGINES, 2 * len(base.engines)), say)
        study.run()
        about = {
            "fleet": open_fleet(asked.ask.fleet).fleet.metadata.name if asked.ask.fleet is not None else None,
            "engines": len(base.engines),
            "traffic": prepared.name,
            "rate_rps": base.rate_rps,
            "slo": base.settings.slo,
            "profiles": sources,
            "own_profiles": own,
        }
        return answered(study, about, swing, _caveats(base, own=own))


def _base(prepared: Prepared, asked: AdviseAsk) -> Base:
    scenario = prepared.scenario
    return Base(
        engines=scenario.engines,
        settings=scenario.settings,
        traffic=scenario.traffic,
        rate_rps=asked.rate_rps or prepared.rate_rps,
        full_rps=prepared.full_rps,
        own_arrivals=prepared.own_arrivals and asked.rate_rps in (None, prepared.rate_rps),
    )


def _profiles(ask: Ask) -> tuple[list[str], bool]:
    """Where the curves are from, in words, and whether all of them were measured on the engines themselves."""
    if ask.curves is not None:
        shipped = "/" not in ask.curves and not ask.curves.endswith(".json")
        return [f"{ask.curves}, {'built in' if shipped else 'named with --profile'}"], not shipped
    assert ask.fleet is not None  # `prepare` asks for one of both
    expanded = open_fleet(ask.fleet)
    found: dict[CurvesSource, list[str]] = {}
    for engine in expanded.engines:
        found.setdefault(known_curves(expanded, engine.id)[1], []).append(engine.id)
    count = len(expanded.engines)
    words = [f"{SOURCES[source]} ({len(ids)} of {count} engines)" for source, ids in found.items()]
    return words, set(found) == {"measured"}


def _caveats(base: Base, *, own: bool) -> list[str]:
    found = []
    if not own:
        found.append(
            "The profile is not one of your engines. Another card, model or launch may well have another answer: "
            "measure yours with `narwhal profile FLEET`, then ask again."
        )
    found.append(
        "Simulated. Against real engines on one and two H200s medians of TTFT and TPOT were up to 20 % off, and the "
        "attainment of a split up to .13; smaller differences are not counted here (docs/performance.md)."
    )
    found.append(
        "How prompts and streams share a step on a colocated engine follows from its profile by a formula that was not "
        "held against a real one; the list of changes says what happens if they share no work."
    )
    found.append("Prefix caches, the network's other traffic, preemption by priority and failures are left out.")
    if any(engine.device for engine in base.engines):
        found.append(
            "Engines that share a card share what it can do, whatever their roles: separating them wins little."
        )
    seconds = base.traffic(base.rate_rps, 0).seconds
    if seconds < FEW_BLOCKS * BLOCK_S:
        found.append(f"The traffic lasts {seconds:.0f} s: intervals from so little of it are rough.")
    return found
