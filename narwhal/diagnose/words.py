"""Router state and decisions in words and numbers, for a terminal."""

import json
from typing import Any

from narwhal.control.guards import LONG_AGO_S
from narwhal.diagnose.drains import cohort_lines, drain_lines, standing_words

Json = dict[str, Any]
HELD_BY = "; held by "
"""Begins the part of a decision's reason that names a guard; here the guards speak for themselves."""
_ON_OFF = {
    "lease": ("the router leads", "the router cannot prove that it leads"),
    "hold": ("moves are not on hold", "moves are on hold"),
    "advisory": ("the controller may move engines", "controller.advisory is on: it records and moves nothing"),
}
"""What to say of a switch: passed, held."""
_LIFECYCLE = {
    "lifecycle": "is live",
    "unadmitted": "is not admitted yet",
    "ejected": "is ejected",
    "draining": "is draining",
    "leaving": "is leaving the fleet",
    "suspected": "is suspected to be down",
    "moving": "is on its way to another role",
}
_NAMED = 3
"""Engines that the line of what is degraded names."""
_MEASURED = {
    "act_at": "the score is {value:.3g}, nothing moves below {limit:.3g}",
    "movement_margin": "the best other split is better by {value:.3g}, a move needs {limit:.3g}",
    "gain": "the score gets better by {value:.3g}, a move needs {limit:.3g}",
    "expand_at": "the score is {value:.3g}, prefill grows from {limit:.3g} on",
    "shrink_at": "the score is {value:.3g}, prefill shrinks from {limit:.3g} on",
    "shrink": "prefill would be at {value:.3g} of its TTFT target, it may shrink up to {limit:.3g}",
    "live": "{value:g} live engines would be left, one has to be",
    "min_arrivals": "{value:g} arrivals seen, {limit:g} are needed",
    "confirmations": "found by {value:g} of {limit:g} evaluations in a row",
    "demand_rise_tolerance": "demand for decode is {value:.3g}, more than {limit:.3g} is a rise",
}


def status_lines(state: Json) -> list[str]:
    """The `RouterState` document as a page: split, load, queue, counts, one line for each engine."""
    split, load, queue, counts = state["split"], state["load"], state["queue"], state["counts"]
    hold, follows = state["hold"], only_follows(state)
    split_words = f"{split['prefill']} prefill, {split['decode']} decode"
    if follows:
        split_words = "not heard yet" if state["lease"]["lag_s"] is None else "as the router that leads has it"
    lines = [
        f"{state['fleet']} · {state['model']} · pid {state['pid']}, up {span(state['uptime_s'])}"
        f" · policy {state['policy']} · {state['epoch']} role changes",
        f"split     {split_words}"
        + (f" · moves are on hold: {hold['reason'] or 'no reason given'}" if hold["on"] else ""),
        f"load      prefill {_ratio(load['prefill'])}, decode {_ratio(load['decode'])} (1.00: at its target)",
        f"queue     {queue['requests']} waiting, the oldest for {queue['oldest_s']:.1f} s;"
        f" {state['seats_waiting']} wait for a decode seat",
        "requests  " + ", ".join(f"{counts[key]} {key}" for key in counts),
        *_went_on(state["went_on"]),
        f"in SLO    {_percent(state['attainment_60s'])} of the last 60 s",
        *lease_lines(state),
        *degraded_lines(state),
        "",
        f"{'engine':<14}{'role':<9}{'state':<12}{'prompts':>8}{'backlog':>9}{'streams':>9}{'KV':>9}{'full':>7}",
    ]
    for engine in state["engines"]:
        pin, standing = "*" if engine["pin"] else "", "–" if follows else engine["state"]
        lines.append(
            f"{engine['id']:<14}{engine['role'] + pin:<9}{standing:<12}{engine['prefills']:>8}"
            f"{engine['backlog_s']:>8.1f}s{engine['residents']:>9}{engine['kv_tokens']:>9}"
            f"{_percent(engine['occupancy']):>7}"
        )
    tenants = state.get("tenants", [])
    if tenants:
        lines += ["", f"{'tenant':<24}{'weight':>8}{'class':>13}{'open':>7}{'waiting':>9}{'tokens':>13}"]
    lines += [
        f"{each['name']:<24}{each['weight']:>8g}{each['priority']:>13}{each['open']:>7}{each['waiting']:>9}"
        f"{each['tokens']:>13}"
        for each in tenants
    ]
    if any(engine["pin"] for engine in state["engines"]):
        lines.append("* pinned to its role")
    drained = [*drain_lines(state), *cohort_lines(state)]
    return [*lines, *([""] if drained else []), *drained, *worker_lines(state), *learning_lines(state)]


def degraded_lines(state: Json) -> list[str]:
    """Why the state is degraded, in one line; empty when all is well."""
    out = [] if only_follows(state) else [standing_words(e) for e in state["engines"] if e["state"] != "live"]
    if len(out) > _NAMED:
        out = [*out[:_NAMED], f"{len(out) - _NAMED} more, see narwhal why"]
    said = [*filter(None, (_lease_trouble(state), state["degraded"])), *out]
    return [f"degraded  {'; '.join(said)}"] if said else []


def _lease_trouble(state: Json) -> str:
    if lease_is_well(state):
        return ""
    lease = state["lease"]
    if lease["standing"] == "leader":
        return "the router cannot prove that it leads"
    return "nobody is known to lead" if lease["trouble"] else f"no router is followed: {lease['follow_trouble']}"


def only_follows(state: Json) -> bool:
    """Whether this router has stood by since its start: it admits no engine then, and takes over what is told it."""
    lease, engines = state.get("lease") or {}, state["engines"]
    return lease.get("standing") == "standby" and all(engine["state"] == "unadmitted" for engine in engines)


def _went_on(counts: Json) -> list[str]:
    """What engines failed and others served; empty where nothing was."""
    said = [f"{counts['retried']} retried"] if counts["retried"] else []
    many = counts["continued"]
    said += [f"{many} stream{'s' * (many > 1)} went on elsewhere"] if many else []
    return [f"failover  engines failed requests: {', '.join(said)}"] if said else []


def worker_lines(state: Json) -> list[str]:
    """The processes that own client connections, where there are several."""
    workers = state.get("workers", [])
    if not workers:
        return []
    head = f"{'worker':<14}{'connections':>12}{'requests':>10}{'streams':>9}"
    return ["", head] + [
        f"pid {each['pid']:<10}{each['connections']:>12}{each['requests']:>10}{each['streams']:>9}" for each in workers
    ]


def learning_lines(state: Json) -> list[str]:
    """Engines without a profile: what was learned of them so far, and what that holds up. Empty when there are none."""
    groups: dict[tuple[int, int, int], list[str]] = {}
    for engine in state["engines"]:
        seen = engine.get("learning")
        if seen:
            samples = seen["prefill_samples"], seen["decode_samples"], seen["needed_samples"]
            groups.setdefault(samples, []).append(engine["id"])
    lines = [
        f"learning  {', '.join(engines)}: no profile; learned from {prefill} prefill and {decode} decode samples"
        + (f", admission is open until there are {needed} of each" if min(prefill, decode) < needed else "")
        for (prefill, decode, needed), engines in groups.items()
    ]
    if lines:
        lines.append(
            "          engines keep their roles meanwhile (floors are repaired): `narwhal profile` measures them"
        )
    return lines


def refusal(decision: Json, hold_reason: str = "") -> str:
    """Why a decision moved nothing: what held it, in words, else its reason."""
    held = [guard_words(guard, decision, hold_reason) for guard in decision["guards"] if not guard["passed"]]
    return "; ".join(held) or str(decision["reason"])


def reload_lines(document: Json) -> list[str]:
    """The `Reload` document as lists: what is in force now, what needs a restart, what means nothing here."""
    titles = {
        "applied": "would be applied" if document["check"] else "applied",
        "restart": "needs a restart",
        "no_effect": "has no effect on what runs",
    }
    lines: list[str] = []
    for part, title in titles.items():
        rows = document[part]
        if rows:
            width = max(len(row["path"]) for row in rows)
            lines += [f"{title}:", *(f"  {row['path']:<{width}}  {_change(row)}" for row in rows)]
    return lines or ["nothing has changed"]


def _change(row: Json) -> str:
    old, new = (_value(row[side]) for side in ("old", "new"))
    said = [f"{old} → {new}", f"restart: {row['needs']}" if row["needs"] else "", row["note"]]
    return "; ".join(filter(None, said))


def lease_lines(state: Json) -> list[str]:
    """Which of two routers this is, and whether it follows or is followed; empty for one that is alone."""
    lease = state.get("lease")
    if lease is None:
        return []
    if lease["standing"] == "leader":
        many = (
            "nobody follows"
            if not lease["followers"]
            else f"{lease['followers']} follow" + "s" * (lease["followers"] == 1)
        )
        if lease["proven"]:
            return [f"lease     leads{_which(lease)}, term {lease['epoch']}; {many}"]
        why = f" ({lease['trouble']})" if lease["trouble"] else ""
        return [f"lease     leads{_which(lease)} without proof{why}: roles, hold and engines' lives are frozen; {many}"]
    word = "stands by" if lease["standing"] == "standby" else "was deposed"
    if lease["trouble"]:
        return [f"lease     {word}; {lease['trouble']}"]
    who = f"{lease['leader']}{_which(lease)} leads" if lease["leader"] else "nobody leads"
    heard = f"heard {lease['lag_s']:.1f} s ago" if lease["lag_s"] is not None else "not heard yet"
    trouble = lease["follow_trouble"]
    return [f"lease     {word}; {who}, {heard}" + (f"; {trouble}" if trouble else "")]


def _which(lease: Json) -> str:
    return f" ({lease['leader_is']})" if lease["leader_is"] else ""


def lease_is_well(state: Json) -> bool:
    """Whether a router leads with proof, or follows the one that does; one that is alone is."""
    lease = state.get("lease")
    if lease is None:
        return True
    return bool(
        lease["proven"] if lease["standing"] == "leader" else not lease["follow_trouble"] and not lease["trouble"]
    )


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "–" if value is None else json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value)


def guard_words(guard: Json, decision: Json, hold_reason: str = "") -> str:
    """What a guard saw, as a fact that is true whether it passed or not. `hold_reason`: the operator's, if any."""
    name, passed, value, limit = guard["name"], guard["passed"], guard["value"], guard["limit"]
    of_s = f"{value:.3g} s of {limit:.3g} s" if limit else f"{value:.3g} s"
    if name in _ON_OFF:
        words = _ON_OFF[name][0 if passed else 1]
        return f"{words}: {hold_reason}" if name == "hold" and not passed and hold_reason else words
    if name.removeprefix("min_") in ("prefill", "decode"):
        has = "has" if decision["trigger"] == "floor" else "would have"
        engines = "engine" if value == 1 else "engines"
        return f"{name.removeprefix('min_')} {has} {value:g} {engines}, its floor is {limit:g}"
    if name == "cooldown_s":
        last = f"the last move to decode was {value:.3g} s ago, the cooldown is {limit:.3g} s"
        return "no move to decode before" if value >= LONG_AGO_S else last
    if name == "departure":
        if limit:
            return f"the departure has been open for {of_s}"
        return "no departure stands against it" if passed else "a departure to the other role is open"
    if name in ("evidence_span_s", "evidence_max_span_s"):
        return f"the evidence window has been open for {of_s}"
    if name == "movement_margin" and value < 0:
        return f"the best other split is worse by {-value:.3g}"
    if name in _MEASURED:
        return _MEASURED[name].format(value=value, limit=limit)
    return _of_engine(guard, decision, of_s)


def _of_engine(guard: Json, decision: Json, of_s: str) -> str:
    name, engine, passed, value, limit = (guard[key] for key in ("name", "engine", "passed", "value", "limit"))
    if name == "pin":
        role = next((f"to {move['source']}" for move in decision["moves"] if move["engine"] == engine), "to its role")
        return f"{engine} is not pinned against it" if passed else f"{engine} is pinned {role}"
    if name == "dwell_s":
        return f"{engine} never changed its role" if value >= LONG_AGO_S else f"{engine} is in its role for {of_s}"
    if name == "flip_resident_guard":
        streams = f"{engine} has {value:g} stream{'' if value == 1 else 's'}"
        return f"{streams}, it may have {limit:g} to move" if limit else streams
    if name == "cohort":
        return f"{value:g} other engine{'' if value == 1 else 's'} of its cohort would have {engine}'s role, one has to"
    if name in _LIFECYCLE:
        return f"{engine} {_LIFECYCLE[name]}"
    return f"{name}{f' ({engine})' if engine else ''}: {value:.4g}, limit {limit:.4g}"


def _ratio(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def span(seconds: float) -> str:
    """A length of time in words."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
