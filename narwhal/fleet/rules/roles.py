"""NW030 to NW035: split, pins and floors."""

from collections.abc import Iterator

from narwhal.fleet.facts import Facts
from narwhal.fleet.model import Role
from narwhal.fleet.rules.rule import Hit, rule
from narwhal.fleet.suggest import counted


@rule(
    "NW030",
    "split does not add up",
    means="The split gives roles to more or fewer engines than the fleet has.",
    fix="Make `prefill` + `decode` the number of engines.",
)
def split_adds_up(facts: Facts) -> Iterator[Hit]:
    """Prefill and decode of the split are all engines."""
    split, total = facts.fleet.split, facts.engine_total()
    if split.prefill + split.decode != total and total:
        text = f"the split is {split.prefill} + {split.decode}, and the fleet has {counted(total, 'engine')}"
        prefill = max(min(split.prefill, total - 1), 1)
        hint = f"make `prefill` + `decode` {total}, such as `prefill: {prefill}` and `decode: {total - prefill}`"
        yield Hit(("split",), text, f"{total} in all", split.prefill + split.decode, hint, key=True)


@rule(
    "NW031",
    "every engine pinned to one role",
    means="All engines are pinned to the same role, so the other one could never be served.",
    fix="Take a pin away.",
)
def pins_leave_both_roles(facts: Facts) -> Iterator[Hit]:
    """Not all of two or more engines are pinned to one role."""
    total = facts.engine_total()
    for role in ("prefill", "decode"):
        if total > 1 and _pinned(facts, role) == total:
            last = facts.engines[-1]
            path = last.path("pin", ("engines", "overrides"))
            yield Hit(path, f"all {total} engines are pinned to {role}", "an engine for the other role", role)


@rule(
    "NW032",
    "split against the pins",
    means="More engines are pinned to a role than the split gives it.",
    fix="Give the role at least as many engines as are pinned to it.",
)
def split_holds_the_pins(facts: Facts) -> Iterator[Hit]:
    """The split has room for the engines pinned to each role."""
    total = facts.engine_total()
    for role, places in (("prefill", facts.fleet.split.prefill), ("decode", facts.fleet.split.decode)):
        pinned = _pinned(facts, role)
        if pinned > places and pinned < max(total, 2):
            text = f"pins give {role} {counted(pinned, 'engine')}, and the split has {places}"
            yield Hit(("split", role), text, f"at least {pinned}", places)


@rule(
    "NW033",
    "floors that cannot hold",
    means="The floors of both roles need more engines than there are, or than pins leave free.",
    fix="Lower `controller.min_prefill` or `controller.min_decode`, or take pins away.",
)
def floors_can_hold(facts: Facts) -> Iterator[Hit]:
    """Floors fit the fleet and its pins; a fleet of one engine serves both roles with it and has none."""
    yield from _floor_hits(facts)


def _floor_hits(facts: Facts) -> Iterator[Hit]:
    total, controller = facts.engine_total(), facts.fleet.controller
    if total < 2:
        return
    floors = {"prefill": controller.min_prefill, "decode": controller.min_decode}
    if sum(floors.values()) > total:
        text = f"the floors are {floors['prefill']} + {floors['decode']}, and the fleet has {total} engines"
        key = max(floors, key=lambda role: floors[role])
        yield Hit(("controller", f"min_{key}"), text, f"at most {total} in all", floors[key])
        return
    for role, other in (("prefill", "decode"), ("decode", "prefill")):
        free = total - _pinned(facts, other)
        if 0 < free < floors[role]:
            text = f"min_{role} is {floors[role]}, and pins leave {counted(free, 'engine')} for {role}"
            yield Hit(("controller", f"min_{role}"), text, f"at most {free}", floors[role])


@rule(
    "NW034",
    "split below a floor",
    means="The fleet would start below a floor, and the controller would move engines at once to repair it.",
    fix="Start at the floor or above, or lower the floor.",
)
def split_keeps_the_floors(facts: Facts) -> Iterator[Hit]:
    """The split gives each role its floor, where the floors can hold; a fleet of one engine has none."""
    total, split, controller = facts.engine_total(), facts.fleet.split, facts.fleet.controller
    if any(_floor_hits(facts)):
        return
    floors = (("prefill", split.prefill, controller.min_prefill), ("decode", split.decode, controller.min_decode))
    for role, places, floor in floors:
        if total > 1 and places < floor:
            text = f"the split gives {role} {counted(places, 'engine')}, and min_{role} is {floor}"
            yield Hit(("split", role), text, f"at least {floor}", places)


def _pinned(facts: Facts, role: Role | str) -> int:
    """Engines pinned to a role. Raises `Unknown` when a pin is not readable."""
    facts.pins_known()
    return sum(engine.pin == role for engine in facts.engines)
