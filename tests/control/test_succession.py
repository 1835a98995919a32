"""A router's successor knows what the former one knew, on its own clock, and takes up the role map."""

import math
from typing import Any

import msgspec
import pytest

from narwhal.control import Control
from narwhal.control.commands import CheckEngine, Decided, MoveRole, StartPrefill
from narwhal.control.events import (
    AnyEvent,
    DrainSet,
    EngineJoined,
    EngineUp,
    HoldSet,
    LeaseChanged,
    MoveRequested,
    RoleMoved,
    SwapRequested,
    Tick,
)
from narwhal.control.snapshot import Cut, as_read
from narwhal.control.succession import RoleEntry, RoleMap, follow_map, presume_handoffs, role_map, succeed
from tests.control.driving import CURVES, Driver, only
from tests.property.test_control import World

AHEAD_S = float(2**20)
BEGIN_T = 64.0


def left_behind(control: Control) -> dict[str, Any]:
    """What a follower has of a control."""
    state: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(Cut(control, residents=False).state()))
    return state


def later(event: AnyEvent, shift_s: float) -> AnyEvent:
    """The same event on a clock that is ahead, its times on a grid on which nothing is rounded."""
    names = [name for name in event.__struct_fields__ if name == "t" or name.endswith("_t")]
    times = {name: getattr(event, name) for name in names}
    return msgspec.structs.replace(
        event, **{name: math.floor(t * 64) / 64 + BEGIN_T + shift_s for name, t in times.items() if t >= 0}
    )


def played(world: World, shift_s: float) -> Control:
    control = Control(world.driver.settings)
    for event in world.driver.events:
        control.handle(later(event, shift_s))
    return control


def without_integrals(control: Control) -> Control:
    """Integrals since the clock's beginning, of which only differences are ever read."""
    for engine in control.pool.engines.values():
        if engine.meter is not None:
            engine.meter.stream_s = engine.meter.kv_token_s = 0.0
    return control


def flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {name: leaf for key, each in items for name, leaf in flat(each, f"{path}/{key}").items()}
    return {path: value}


@pytest.mark.parametrize("seed", range(12))
def test_every_time_in_what_is_left_behind_is_shifted_to_the_successors_clock(seed: int) -> None:
    world = World(seed)
    for _ in range(400):
        world.step()
    here, there = played(world, 0.0), played(world, AHEAD_S)
    shifted = flat(as_read(without_integrals(succeed(here.settings, left_behind(here), AHEAD_S))))
    expected = flat(as_read(without_integrals(succeed(there.settings, left_behind(there), 0.0))))
    unset = {(0.0, AHEAD_S)}  # a time that nothing has set yet
    differing = {
        path: (expected.get(path), shifted.get(path))
        for path in {*shifted, *expected}
        if shifted.get(path) != expected.get(path) and (expected.get(path), shifted.get(path)) not in unset
    }
    assert len(expected) > 300
    assert not differing


@pytest.mark.parametrize("seed", range(6))
def test_the_dead_routers_requests_are_gone_and_what_was_learned_is_not(seed: int) -> None:
    world = World(seed)
    for _ in range(300):
        world.step()
    before = world.driver.control
    after = succeed(before.settings, left_behind(before), 0.0)
    assert not after.pool.requests
    assert not after.pool.queue.count
    for engine in after.pool.engines.values():
        assert (engine.streams, engine.kv_tokens, engine.prefill_tokens, len(engine.prefills)) == (0, 0, 0, 0)
        assert engine.moving is None
    for account in after.pool.accounts:
        assert (account.open, account.waiting) == (0, 0)
        known = before.pool.accounts[account.name]
        assert (account.output_tokens, account.tokens) == (known.output_tokens, known.tokens)
    t = world.t
    assert after.demand.prefill_load(t) == pytest.approx(before.demand.prefill_load(t), rel=1e-5)
    assert {n: e.role for n, e in after.pool.engines.items()} == {n: e.role for n, e in before.pool.engines.items()}
    assert {n: e.prefill_scale for n, e in after.pool.engines.items()} == {
        n: e.prefill_scale for n, e in before.pool.engines.items()
    }


def test_the_successor_serves_at_once() -> None:
    driver = Driver("pd")
    driver.arrive(1, t=1.0)
    after = succeed(driver.settings, left_behind(driver.control), 0.0)
    driver.control = after
    driver.pool = after.pool
    started = [k for k in driver.arrive(2, t=2.0) if isinstance(k, StartPrefill)]
    assert [k.engine for k in started] == ["e0"]


def test_the_map_says_roles_as_they_will_be_once_the_moves_under_way_are_done() -> None:
    driver = Driver("ppdd")
    commands = driver.feed(SwapRequested(1e6, "e0", "e3"))
    moves = {k.engine: k.role for k in commands if isinstance(k, MoveRole)}
    assert moves == {"e0": "decode", "e3": "prefill"}
    assert {n: e.role for n, e in role_map(driver.pool).engines.items()} == {
        "e0": "prefill",
        "e1": "prefill",
        "e2": "decode",
        "e3": "decode",
    }
    assert {n: e.role for n, e in role_map(driver.pool, moves).engines.items()} == {
        "e0": "decode",
        "e1": "prefill",
        "e2": "decode",
        "e3": "prefill",
    }


def test_a_new_leader_goes_by_the_map() -> None:
    first = Driver("ppdd")
    for command in first.feed(MoveRequested(1e6, "e1", "decode")):
        if isinstance(command, MoveRole):
            first.feed(RoleMoved(1e6, command.engine, command.role, command.epoch))
    first.feed(HoldSet(1e6, True, "night"))
    written = msgspec.json.decode(msgspec.json.encode(role_map(first.pool)), type=RoleMap)
    second = Driver("ppdd")
    follow_map(second.control, written)
    assert {n: e.role for n, e in second.pool.engines.items()} == {
        "e0": "prefill",
        "e1": "decode",
        "e2": "decode",
        "e3": "decode",
    }
    assert (second.pool.hold, second.pool.hold_reason, second.pool.epoch) == (True, "night", first.pool.epoch)
    assert [e.id for e in second.pool.decode] == ["e1", "e2", "e3"]


def test_an_engine_in_another_life_than_the_maps_has_no_work_after_the_next_look() -> None:
    driver = Driver("ppdd")
    entries = {name: RoleEntry(e.role, None, "life-1") for name, e in driver.pool.engines.items()}
    entries["e0"] = RoleEntry("prefill", None, "life-0")
    entries["e2"] = RoleEntry("decode", None, "")
    follow_map(driver.control, RoleMap(7, False, "", entries))
    for name in entries:
        driver.feed(EngineUp(1.0, name, "life-1"))
    assert [e.id for e in (*driver.pool.prefill, *driver.pool.decode)] == ["e1", "e3"]


def test_an_engine_that_the_map_keeps_out_is_readmitted_though_this_router_never_saw_it() -> None:
    driver = Driver("pd")
    driver.feed(EngineJoined(0.5, "e2", "decode", CURVES))
    entries = {name: RoleEntry(e.role, None, "life-1") for name, e in driver.pool.engines.items()}
    entries["e2"] = RoleEntry("decode", None, "")
    follow_map(driver.control, RoleMap(7, False, "", entries))
    driver.feed(EngineUp(1.0, "e2", "life-5"))
    assert [e.id for e in driver.pool.decode] == ["e1"]
    assert only(driver.feed(EngineUp(2.0, "e2", "life-5")), CheckEngine).engine == "e2"


def test_what_a_router_drains_that_was_told_nothing_may_still_be_read_for_a_lease() -> None:
    driver = Driver("ppd")
    presume_handoffs(driver.pool, 1.0)
    driver.feed(DrainSet(2.0, ("e0",), True))
    driver.feed(Tick(30.0))
    assert not driver.engine("e0").drain.done
    driver.feed(Tick(32.0))
    assert driver.engine("e0").drain.done


def test_a_first_life_waits_until_the_lease_is_proven() -> None:
    driver = Driver("pd")
    driver.feed(EngineJoined(0.5, "e2", "decode", CURVES))
    driver.feed(LeaseChanged(1.0, False))
    driver.feed(EngineUp(2.0, "e2", "life-1"))
    assert role_map(driver.pool).engines["e2"].generation == ""
    assert [e.id for e in driver.pool.decode] == ["e1"]
    driver.feed(LeaseChanged(3.0, True))
    assert role_map(driver.pool).engines["e2"].generation == "life-1"
    assert [e.id for e in driver.pool.decode] == ["e1", "e2"]


def held(commands: list[Any]) -> list[str]:
    decisions = [k.decision for k in commands if isinstance(k, Decided)]
    return [guard.name for d in decisions for guard in d.guards if not guard.passed and d.outcome == "held"]


def test_what_the_map_holds_is_frozen_while_the_lease_is_unproven() -> None:
    driver = Driver("ppdd", controller={"enabled": True, "min_decode": 3})
    driver.feed(LeaseChanged(1e6, False))
    before = role_map(driver.pool)
    assert held(driver.feed(MoveRequested(1e6, "e0", "decode"))) == ["lease"]
    assert held(driver.feed(HoldSet(1e6, True, "night"))) == ["lease"]
    for second in range(100):
        assert not [k for k in driver.feed(Tick(1e6 + second)) if isinstance(k, MoveRole)]
    driver.feed(EngineUp(1e6 + 101, "e3", "life-2"))
    for second in range(102, 110):
        driver.feed(EngineUp(1e6 + second, "e3", "life-2"))
    frozen = role_map(driver.pool)
    assert frozen.engines["e3"].generation == ""
    assert {n: (e.role, e.pin) for n, e in frozen.engines.items()} == {
        n: (e.role, e.pin) for n, e in before.engines.items()
    }
    assert (frozen.hold, frozen.epoch) == (before.hold, before.epoch)
    assert driver.arrive(1, t=1e6 + 110)  # requests are served as ever
    driver.feed(LeaseChanged(1e6 + 120, True))
    moves = [k for s in range(10) for k in driver.feed(Tick(1e6 + 121 + s)) if isinstance(k, MoveRole)]
    assert [k.role for k in moves] == ["decode"]
