"""Running a benchmark: points in order, what is kept passed over, and the search for the highest rate that holds."""

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import narwhal
from narwhal.diagnose import AdminClient, RefusedError, UnreachableError
from narwhal.fleet import Expanded
from narwhal.fleet.model import Point, Points, Slo, TraceTraffic
from narwhal.measure.errors import BenchError
from narwhal.measure.evidence import SEARCH, BenchEvidence, BenchInputs, BenchSearch, BenchTry
from narwhal.measure.keeping import clear_partial, digest_of, folder_name, still_holds, utc_now, write_document
from narwhal.measure.load import Target
from narwhal.measure.point import Say, Work, measure
from narwhal.measure.prompts import IdPrompts, Prompts, served_count, text_prompts
from narwhal.measure.traffic import at, own_rate, planned, with_lengths
from narwhal.measure.watching import State, Watch
from narwhal.profiling import EngineError, EngineUrl, engine_profile, engine_urls

CHAT_PATH, COMPLETIONS_PATH = "/v1/chat/completions", "/v1/completions"
LEVEL = 0.9
"""Attainment that a rate must reach in a search, where its point declares none."""
SPAN = 4.0
"""A search without bounds goes from the point's rate over this to the rate times this."""
MOST_TRIES = 24
Holds = Callable[[float], Awaitable[bool]]
"""Whether a rate holds, per second."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured, and where."""

    name: str
    """Name of the benchmark."""
    points: Points
    folder: Path
    """What relative paths of traces are meant from."""
    target: Target
    out: Path
    """Where evidence is kept."""
    admin: AdminClient | None
    """The router; None: it is not asked, and what needs it is not checked."""
    expanded: Expanded | None = None
    """The fleet file, if one was named."""
    again: bool = False
    """Measure points too whose evidence still holds."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A point and its evidence."""

    folder: Path
    evidence: BenchEvidence
    kept: bool
    """Whether it was measured before, and passed over now."""


@dataclass(slots=True)
class Ran:
    """What a run came to; what is in it when a run is interrupted is whole."""

    measured: list[Measured] = field(default_factory=list)
    searches: list[tuple[Path, BenchSearch]] = field(default_factory=list)


async def run_points(plan: Plan, ran: Ran, say: Say) -> None:
    """Measure the points of a plan in order, into `ran`.

    Raises `BenchError`, and `TraceError`, `TrafficError`, `ProfileError` for traffic that cannot be made.
    """
    _clear(plan, say)
    for number, point in enumerate(plan.points.points, 1):
        say(f"{point.name} ({number} of {len(plan.points.points)})")
        ran.measured.append(await _measured(plan, point, plan.out / point.name, say))


async def search_points(plan: Plan, ran: Ran, say: Say) -> None:
    """For each point of a plan search the highest rate that holds, into `ran`; every rate leaves its evidence.

    Raises as `run_points` does.
    """
    _clear(plan, say)
    for point in plan.points.points:
        ran.searches.append(await _searched(plan, point, ran, say))


def _clear(plan: Plan, say: Say) -> None:
    for path in clear_partial(plan.out):
        say(f"{path.parent.name}: a run was killed while it wrote {path.name}; what it left is removed")


async def _searched(plan: Plan, point: Point, ran: Ran, say: Say) -> tuple[Path, BenchSearch]:
    rate = own_rate(point, plan.folder)
    low, high, precision = rate / SPAN, rate * SPAN, 0.05
    if point.search is not None:
        low, high, precision = point.search.low_rps, point.search.high_rps, point.search.precision
    level = LEVEL if point.attainment is None else point.attainment
    say(f"{point.name}: searching {low:g} to {high:g} req/s for the highest rate with attainment {level:.0%}")
    tries: list[BenchTry] = []

    async def holds(rate_rps: float) -> bool:
        tries.append(await _tried(plan, point, rate_rps, level, ran, say))
        return tries[-1].holds

    found, above = await bisect(holds, low, high, precision)
    search = BenchSearch(
        kind="BenchSearch",
        benchmark=plan.name,
        point=point.name,
        level=level,
        ended_at=utc_now(),
        goodput_rps=found,
        above_rps=above,
        tries=tries,
    )
    folder = plan.out / point.name
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{folder_name(search.ended_at)}-{SEARCH}"
    write_document(path, search)
    return path, search


async def bisect(holds: Holds, low: float, high: float, precision: float) -> tuple[float | None, float | None]:
    """The highest rate that was seen to hold, and the lowest that was seen not to; None: there was none."""
    if not await holds(rounded(low)):
        return None, rounded(low)
    if await holds(rounded(high)):
        return rounded(high), None
    for _ in range(MOST_TRIES):
        if (high - low) <= precision * high:
            break
        middle = rounded((low + high) / 2)
        low, high = (middle, high) if await holds(middle) else (low, middle)
    return rounded(low), rounded(high)


def rounded(rate_rps: float) -> float:
    """A rate to four digits, so that a search that is taken up again asks for the same ones."""
    return float(f"{rate_rps:.4g}")


async def _tried(plan: Plan, point: Point, rate_rps: float, level: float, ran: Ran, say: Say) -> BenchTry:
    """One rate; figures that do not count are measured once more. Raises `BenchError` when they do not count again."""
    parent = plan.out / f"{point.name}@{rate_rps:g}"
    for _ in range(2):
        done = await _measured(plan, at(point, rate_rps), parent, say)
        ran.measured.append(done)
        if done.evidence.verdict.valid:
            break
    else:
        hint = "the evidence says which check failed; correct that, or the limits under `validity`"
        text = f"point {point.name!r} at {rate_rps:g} req/s is invalid twice: {wrong_words(done.evidence)}"
        raise BenchError("invalid", text, hint, failed=True)
    attainment = done.evidence.figures.attainment
    return BenchTry(
        rate_rps=rate_rps,
        attainment=attainment,
        valid=True,
        holds=(attainment or 0.0) >= level,
        evidence=f"../{done.folder.relative_to(plan.out)}",
    )


async def _measured(plan: Plan, point: Point, parent: Path, say: Say) -> Measured:
    work = _work(plan, point, parent)
    if not plan.again and (found := still_holds(parent, work.inputs)):
        say(f"    kept: measured at {found[1].started_at} with the same inputs (--again measures it anew)")
        return Measured(*found, kept=True)
    seconds = point.warmup_s + point.duration_s
    say(f"    {len(work.requests)} requests in {seconds:g} s, {len(work.requests) / seconds:.2f} a second")
    watch = Watch(plan.admin, _engines(plan.expanded)) if plan.admin is not None else None
    folder, evidence = await measure(work, watch, say)
    say(f"    {summary(evidence)}")
    return Measured(folder, evidence, kept=False)


def summary(evidence: BenchEvidence) -> str:
    """What a point came to, in a line."""
    if not evidence.verdict.valid:
        return f"INVALID: {wrong_words(evidence)}"
    share = evidence.figures.attainment
    words = "nothing was offered" if share is None else f"attainment {100 * share:.1f} %"
    wanted = evidence.point.attainment
    if evidence.verdict.passed is not None and wanted is not None:
        words += f", {'as declared' if evidence.verdict.passed else f'declared are {100 * wanted:g} %'}"
    return words


def wrong_words(evidence: BenchEvidence) -> str:
    """Why figures do not count."""
    return "; ".join(check.message for check in evidence.verdict.checks if check.outcome == "failed")


def _work(plan: Plan, point: Point, parent: Path) -> Work:
    requests = planned(point, plan.folder, plan.expanded)
    prompts = _prompts(plan, point)
    slo = point.slo or plan.points.slo or (plan.expanded.fleet.slo if plan.expanded is not None else None)
    if slo is None:
        text = f"point {point.name!r} has no targets, and there is no fleet file to take them from"
        raise BenchError("slo", text, "write `slo: {ttft_s: 2.0, tpot_s: 0.05}` into the benchmark")
    target = plan.target
    path = CHAT_PATH if point.endpoint == "chat" else COMPLETIONS_PATH
    return Work(
        benchmark=plan.name,
        point=point,
        slo=slo,
        validity=plan.points.validity,
        target=Target(target.host, target.port, target.model, target.api_key, path, target.tls),
        requests=with_lengths(requests, prompts.fitted),
        prompts=prompts,
        inputs=_inputs(plan, point, slo),
        folder=parent,
    )


def _prompts(plan: Plan, point: Point) -> Prompts:
    if point.prompts == "ids":
        return IdPrompts(point.seed, point.shared_prefix)
    target, chat = plan.target, point.endpoint == "chat"
    count = served_count(target.host, target.port, target.model, api_key=target.api_key, tls=target.tls, chat=chat)
    return text_prompts(count, point.seed, chat=chat, shared=point.shared_prefix)


def _inputs(plan: Plan, point: Point, slo: Slo) -> BenchInputs:
    declared = [point.model_dump(), slo.model_dump(), plan.points.validity.model_dump()]
    trace = None
    if isinstance(point.traffic, TraceTraffic):
        trace = digest_of((plan.folder / point.traffic.path).read_bytes())
    return BenchInputs(
        point=digest_of(declared),
        trace=trace,
        fleet=plan.expanded.fleet.digest() if plan.expanded is not None else None,
        served=digest_of(_served(_state(plan.admin))) if plan.admin is not None else None,
        profiles=dict(_profiles(plan.expanded)) if plan.expanded is not None else {},
        narwhal=narwhal.__version__,
    )


def _engines(expanded: Expanded | None) -> dict[str, EngineUrl]:
    """How engines are asked for their metrics; none without a fleet file, or where their key is not to be had here."""
    if expanded is None:
        return {}
    try:
        return engine_urls(expanded)
    except EngineError:
        return {}


def _state(admin: AdminClient) -> State:
    try:
        return admin.state()
    except (UnreachableError, RefusedError) as error:
        hint = "is it the admin listener (routers.admin.port), may the token read it, and does the router run?"
        raise BenchError("router", str(error), hint, failed=True) from None


def _served(state: State) -> list[object]:
    return [state["fleet"], state["model"], state["policy"], sorted(engine["id"] for engine in state["engines"])]


def _profiles(expanded: Expanded) -> Iterator[tuple[str, str]]:
    for engine in expanded.engines:
        with contextlib.suppress(OSError):
            profile = engine_profile(expanded.profiles, engine.id)
            if profile is not None:
                yield engine.id, digest_of(profile.model_dump(mode="json"))


def table(measured: Sequence[Measured]) -> list[str]:
    """A line for each point, for a terminal."""
    rows = [("point", "req/s", "offered", "met", "TTFT p50", "p90", "TPOT p50", "p90", "")]
    for one in measured:
        figures, verdict = one.evidence.figures, one.evidence.verdict
        ttft, tpot = figures.ttft_s, figures.tpot_s
        rows.append(
            (
                one.evidence.point.name,
                f"{figures.offered_rps:.2f}",
                str(figures.offered),
                "-" if figures.attainment is None else f"{100 * figures.attainment:.1f} %",
                *((f"{1e3 * ttft.p50:.0f} ms", f"{1e3 * ttft.p90:.0f} ms") if ttft else ("-", "-")),
                *((f"{1e3 * tpot.p50:.1f} ms", f"{1e3 * tpot.p90:.1f} ms") if tpot else ("-", "-")),
                "INVALID" if not verdict.valid else "missed" if verdict.passed is False else "kept" if one.kept else "",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if not n else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
