"""How far drains are, and which engines pair, in words, for a terminal."""

from typing import Any

Json = dict[str, Any]


def drain_words(engine: Json) -> str:
    """What an engine of the `RouterState` document still has, in words."""
    drain = engine.get("drain")
    if engine["state"] == "drained":
        return f"{engine['id']} is drained: it can be stopped"
    if is_stopped(engine):
        return f"{engine['id']} is drained, its process is stopped"
    if drain is None:
        return f"{engine['id']} is not being drained"
    parts = [
        _many(drain["residents"], "request") + " on it",
        _many(drain["unread"], "handoff") + " not read yet",
        _many(drain["abandoned"], "handoff") + " waiting for the end of its lease" if drain["abandoned"] else "",
        f"moved in {drain['deadline_s']:.0f} s" if drain["deadline_s"] is not None and drain["residents"] else "",
    ]
    return f"{engine['id']} is {engine['state']}: " + ", ".join(filter(None, parts))


def may_stop(engine: Json) -> bool:
    """Whether an engine that is being drained can be stopped: it is drained, or out with nothing left on it."""
    drain = engine.get("drain")
    if engine["state"] == "drained" or drain is None:
        return bool(engine["state"] == "drained")
    out = engine["state"] in ("ejected", "unadmitted")
    return out and not (drain["residents"] or drain["unread"] or drain["abandoned"])


def is_stopped(engine: Json) -> bool:
    """Whether nothing is left of a drained engine, not even its process."""
    return may_stop(engine) and engine["state"] == "ejected" and bool(engine["reason"] == "connection refused")


def standing_words(engine: Json, since: str = "") -> str:
    """How an engine of the `RouterState` document stands, and why. `since`: such as ` since 5 s`."""
    if engine["state"] in ("draining", "drained") or is_stopped(engine):
        return drain_words(engine) + (f";{since}" if since else "")
    word = "on probation" if engine["state"] == "live" else engine["state"]
    return f"{engine['id']} is {word}{since}: {engine['reason'] or 'not told'}"


def drain_lines(state: Json) -> list[str]:
    """A line for each engine that the operator has drained."""
    return [
        drain_words(engine) + ("; it stays so until narwhal readmit" if engine["drain"]["stays"] else "")
        for engine in state["engines"]
        if engine.get("drain")
    ]


def cohort_lines(state: Json) -> list[str]:
    """The cohorts, where there are several; engines that serve both legs themselves are marked."""
    cohorts: dict[str, list[str]] = {}
    for engine in state["engines"]:
        if engine["state"] != "unadmitted":
            alone = " (serves both legs)" if engine.get("lone") else ""
            cohorts.setdefault(engine.get("cohort", ""), []).append(f"{engine['id']}{alone}")
    lines = [f"cohort    {name or 'not told'}: {', '.join(ids)}" for name, ids in sorted(cohorts.items())]
    return lines if len(lines) > 1 else []


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
