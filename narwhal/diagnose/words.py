"""Router state and decisions in words and numbers, for a terminal."""

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]


def status_lines(state: Json) -> list[str]:
    """The `RouterState` document as a page: split, load, queue, counts, one line for each engine."""
    split, load, queue, counts = state["split"], state["load"], state["queue"], state["counts"]
    hold = state["hold"]
    lines = [
        f"{state['fleet']} · {state['model']} · up {_span(state['uptime_s'])} · policy {state['policy']}"
        f" · epoch {state['epoch']}",
        f"split     {split['prefill']} prefill, {split['decode']} decode"
        + (f" · moves are on hold: {hold['reason'] or 'no reason given'}" if hold["on"] else ""),
        f"load      prefill {_ratio(load['prefill'])}, decode {_ratio(load['decode'])} (1.00: at its target)",
        f"queue     {queue['requests']} waiting, the oldest for {queue['oldest_s']:.1f} s;"
        f" {state['seats_waiting']} wait for a decode seat",
        "requests  " + ", ".join(f"{counts[key]} {key}" for key in counts),
        f"in SLO    {_percent(state['attainment_60s'])} of the last 60 s",
        "",
        f"{'engine':<14}{'role':<9}{'state':<12}{'prompts':>8}{'backlog':>9}{'streams':>9}{'KV':>9}{'full':>7}",
    ]
    for engine in state["engines"]:
        pin = "*" if engine["pin"] else ""
        lines.append(
            f"{engine['id']:<14}{engine['role'] + pin:<9}{engine['state']:<12}{engine['prefills']:>8}"
            f"{engine['backlog_s']:>8.1f}s{engine['residents']:>9}{engine['kv_tokens']:>9}"
            f"{_percent(engine['occupancy']):>7}"
        )
    if any(engine["pin"] for engine in state["engines"]):
        lines.append("* pinned to its role")
    return lines


def explain(moves: Sequence[Json], held: Sequence[Json]) -> list[str]:
    """The last decision that moved engines, and what held the better splits since, the newest first."""
    made = [decision for decision in moves if decision["outcome"] == "moved"]
    lines = ["no engine has been moved yet"] if not made else _decision("last move", made[-1])
    since = made[-1]["id"] if made else -1
    later = [decision for decision in held if decision["id"] > since and decision["outcome"] != "moved"]
    if not later:
        return [*lines, "", "nothing better was held back since"]
    lines += ["", f"held back since: {len(later)} decision{'s' if len(later) > 1 else ''}, the latest:"]
    return [*lines, *_decision("held", later[-1])]


def _decision(title: str, decision: Json) -> list[str]:
    moves = "; ".join(f"{move['engine']} {move['source']} → {move['target']}" for move in decision["moves"])
    lines = [
        f"{title}: decision {decision['id']} at {decision['t']:.1f} s, {decision['policy']},"
        f" by {decision['trigger']}, from {decision['prefill']} prefill / {decision['decode']} decode",
        f"  {decision['outcome']}: {moves or 'no engine'}",
        f"  because {decision['reason']}",
    ]
    if decision["candidates"]:
        lines.append(f"  {'split':<8}{'TTFT':>8}{'TPOT':>8}{'seats':>8}{'score':>8}   (1.00: at its target)")
    for index, row in enumerate(decision["candidates"]):
        name = f"{row['prefill']}P{row['decode']}D"
        lines.append(
            f"  {name:<8}{row['ttft']:>8.2f}{row['tpot']:>8.2f}{row['queue']:>8.2f}{row['score']:>8.2f}"
            + ("   now" if index == 0 else "")
        )
    for guard in decision["guards"]:
        who = f" ({guard['engine']})" if guard["engine"] else ""
        verdict = "passed" if guard["passed"] else "held"
        lines.append(f"  {verdict:<7}{guard['name']}{who}: {guard['value']:.4g}, limit {guard['limit']:.4g}")
    if decision["inputs"]:
        lines.append("  from " + ", ".join(f"{name} {value:.4g}" for name, value in sorted(decision["inputs"].items())))
    return lines


def _ratio(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
