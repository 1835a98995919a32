"""What makes figures count: the conditions that a point's evidence is held against."""

from collections.abc import Mapping, Sequence
from typing import Any

from narwhal.fleet.model import Point, Validity
from narwhal.measure.evidence import BenchCheck, BenchFigures, BenchVerdict, CheckName, ClientFacts

State = Mapping[str, Any]
"""A `RouterState`."""
NOT_ASKED = "the router was not asked (--unwatched)"


def check(name: CheckName, wrong: str, fine: str) -> BenchCheck:
    """A check that passes where nothing is wrong."""
    return BenchCheck(name=name, outcome="failed" if wrong else "passed", message=wrong or fine)


def skipped(name: CheckName, reason: str) -> BenchCheck:
    """A check that could not be made."""
    return BenchCheck(name=name, outcome="skipped", message=reason)


def busy(state: State) -> str:
    """Why a fleet is not idle and healthy; empty: it is."""
    lease = state.get("lease")
    if lease is not None and not (lease["standing"] == "leader" and lease["proven"]):
        return f"the router does not lead: it is {lease['standing']}"
    unwell = [engine for engine in state["engines"] if engine["state"] != "live" or engine["probation"]]
    if unwell:
        words = (f"{e['id']} is {'on probation' if e['state'] == 'live' else e['state']}" for e in unwell)
        return ", ".join(words)
    if state["degraded"]:
        return str(state["degraded"])
    if state["journal"]["error"]:
        return "the journal cannot be written"
    waiting = state["queue"]["requests"] + state["seats_waiting"]
    if waiting:
        return f"{waiting} requests wait"
    working = [e["id"] for e in state["engines"] if e["residents"] or e["prefills"]]
    return f"requests are on {', '.join(working)}" if working else ""


def schedule_kept(client: ClientFacts, limits: Validity) -> BenchCheck:
    """Whether the load went out when it was planned."""
    said = f"99 % of {client.sent} requests were sent within {1e3 * client.lag_p99_s:.1f} ms of their time"
    late = client.lag_p99_s > limits.lag_p99_s
    return check("schedule", f"{said}; {1e3 * limits.lag_p99_s:g} ms are allowed" if late else "", said)


def not_stolen(share: float | None, client: ClientFacts, limits: Validity) -> BenchCheck:
    """Whether the load generator had its CPU time: from the hypervisor, from other processes, and at each moment."""
    seen = [
        (share, limits.stolen_share, "% of this machine's CPU time went to other machines", 100),
        (client.waited_share, limits.waited_share, "% of the time the load generator waited for a core", 100),
        (client.stall_max_s, limits.stall_s, "ms at most the load generator did not get to run", 1e3),
    ]
    if all(value is None for value, *_ in seen):
        return skipped("stolen", "this machine does not tell who had its CPU time")
    known = [(value, limit, words, scale) for value, limit, words, scale in seen if value is not None]
    wrong = [
        f"{value * scale:.1f} {words}; {limit * scale:g} are allowed"
        for value, limit, words, scale in known
        if value > limit
    ]
    return check(
        "stolen", ", ".join(wrong), ", ".join(f"{value * scale:.1f} {words}" for value, _, words, scale in known)
    )


def same_router(before: State, after: State, seconds: float) -> BenchCheck:
    """Whether one router process served all the time."""
    ran_s = after["uptime_s"] - before["uptime_s"]
    again = ran_s < 0 or after["uptime_s"] < seconds
    return check("router", "the router was started again meanwhile" if again else "", "one router process all the time")


def same_engines(before: State, after: State, rows: Sequence[Mapping[str, Any]]) -> BenchCheck:
    """Whether the engines were the same processes before and after, and none was out between."""
    was = {engine["id"]: engine["generation"] for engine in before["engines"]}
    now = {engine["id"]: engine["generation"] for engine in after["engines"]}
    wrong = [f"{id_} is gone" if id_ not in now else f"{id_} was restarted" for id_ in was if now.get(id_) != was[id_]]
    wrong += [f"{id_} joined" for id_ in now if id_ not in was]
    out = {str(row["engine"]) for row in rows if row.get("type") == "engine" and row["change"] == "ejected"}
    wrong += [f"{id_} was ejected" for id_ in sorted(out) if now.get(id_) == was.get(id_)]
    return check("engines", ", ".join(wrong), f"{len(was)} engines, none restarted")


def verdict(point: Point, figures: BenchFigures, checks: list[BenchCheck]) -> BenchVerdict:
    """Whether the figures count, and whether they reach what the point declares."""
    valid = not any(one.outcome == "failed" for one in checks)
    wanted = point.attainment
    passed = None if wanted is None or not valid else (figures.attainment or 0.0) >= wanted
    return BenchVerdict(valid=valid, passed=passed, checks=checks)
