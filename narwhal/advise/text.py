"""Advice for people: the answer, then the tables."""

import io

from rich.console import Console
from rich.table import Table

from narwhal.advise.document import Advice, Arrangement, EngineCount, Interval

WIDTH = 120


def advice_text(advice: Advice) -> str:
    """The advice as text, the answer first."""
    slo = advice.slo
    targets = [f"{one.ttft_s:g} s up to {one.up_to_tokens} tokens" for one in slo.ttft_by_prompt] + [
        f"{slo.ttft_s:g} s"
    ]
    head = (
        f"{advice.traffic} at {advice.rate_rps:.3g} requests/s on {advice.engines} engines; "
        f"TTFT {', else '.join(targets)}, TPOT {1e3 * slo.tpot_s:g} ms; curves: {'; '.join(advice.profiles)}"
    )
    parts = [advice.reason, *_more(advice), "", head]
    parts += ["", _table(advice)] if advice.arrangements else []
    parts += ["", *_changes(advice)] if advice.changes else []
    parts += ["", _certainty(advice)] if advice.certainty.seeds else [""]
    if advice.left_out:
        parts.append(f"No time was left for: {'; '.join(advice.left_out)}. Raise --budget-s.")
    parts += ["", *(f"- {caveat}" for caveat in advice.caveats)]
    return "\n".join(parts)


def _more(advice: Advice) -> list[str]:
    """What follows from the answer, in sentences."""
    lines = [f"Run {advice.recommendation}."]
    if advice.moving_ratio is not None:
        moving = advice.moving_ratio
        said = {
            "moving": "Roles that follow the traffic pay",
            "static": "Roles that follow the traffic lose",
            "cannot_tell": "Whether roles should follow the traffic cannot be told",
        }[advice.roles]
        lines.append(f"{said}: {_span(moving)} times the best split; by its swing at most {advice.swing.bound:.2f}.")
    return lines


def _table(advice: Advice) -> str:
    grid = Table(box=None, pad_edge=False)
    grid.add_column("arrangement", no_wrap=True)
    for name in ("holds req/s", f"in time at {advice.rate_rps:.3g}/s", "engines needed"):
        grid.add_column(name, justify="right", no_wrap=True)
    for row in advice.arrangements:
        share = "-" if row.attainment is None else _percent(row.attainment)
        grid.add_row(row.name, _held(row), share, _needed(row.engines))
    out = io.StringIO()
    Console(file=out, width=WIDTH, color_system=None).print(grid)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _held(row: Arrangement) -> str:
    if row.goodput_rps is not None:
        return _span(row.goodput_rps, ".3g")
    if row.failed_rps is None:
        return f"{row.held_rps:.3g} or more" if row.held_rps else "-"
    return f"{row.held_rps:.3g} to {row.failed_rps:.3g}" if row.held_rps else f"below {row.failed_rps:.3g}"


def _needed(engines: EngineCount | None) -> str:
    if engines is None:
        return "-"
    span = str(engines.most) if engines.least == engines.most else f"{engines.least} to {engines.most}"
    return f"{span} ({engines.arrangement})" if engines.arrangement.startswith("static:") else span


def _span(interval: Interval, form: str = ".2f") -> str:
    return f"{interval.value:{form}} [{interval.low:{form}}, {interval.high:{form}}]"


def _percent(interval: Interval) -> str:
    value = f"{100 * interval.value:.1f} %"
    return value if interval.low == interval.high else f"{value} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def _changes(advice: Advice) -> list[str]:
    flips = [one for one in advice.changes if one.flips]
    if not flips:
        return [f"None of {len(advice.changes)} changes that were tried gives another answer."]
    words = {"disaggregate": "disaggregate", "colocate": "stay colocated", "cannot_tell": "cannot tell"}
    nearest = advice.nearest_flip
    lines = ["Another answer with:"]
    for one in flips:
        mark = " (the nearest)" if one == nearest else ""
        lines.append(f"  {one.words}: {words[one.verdict]}, {one.arrangement}{mark}")
    return [*lines, f"The same answer with the other {len(advice.changes) - len(flips)} changes that were tried."]


def _certainty(advice: Advice) -> str:
    known = advice.certainty
    return (
        f"{known.runs} runs, {known.seeds} seeds; intervals: the middle 95 % of {known.resamples} draws of "
        f"{known.blocks} blocks of {known.block_s:g} s of each. "
        f"Less than {100 * known.margin:.0f} % apart counts as nothing."
    )
