"""How far drains are, and which engines pair, in words, for a terminal."""

from typing import Any

Json = dict[str, Any]


def drain_words(engine: Json) -> str:
    """What an engine of the `RouterState` document still has, in words."""
    drain = engine.get("drain")
    if engine["state"] == "drained":
        return f"{engine['id']} is drained: it can be stopped"
    if drain is None:
        return f"{engine['id']} is not being drained"
    parts = [
        _many(drain["residents"], "request") + " on it",
        _many(drain["unread"], "handoff") + " not read yet",
        _many(drain["abandoned"], "handoff") + " waiting for the end of its lease" if drain["abandoned"] else "",
        f"moved in {drain['deadline_s']:.0f} s" if drain["deadline_s"] is not None and drain["residents"] else "",
    ]
    return f"{engine['id']} is {engine['state']}: " + ", ".join(filter(None, parts))


def drain_lines(state: Json) -> list[str]:
    """A line for each engine that the operator has drained."""
    return [
        drain_words(engine) + (" (until narwhal readmit)" if engine["drain"]["stays"] else "")
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
