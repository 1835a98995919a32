"""A running control under a changed fleet file: everything follows, and what runs is left alone."""

from typing import Any

import pytest
from msgspec.structs import replace

from narwhal.control import Control
from narwhal.control.commands import (
    Abort,
    Decided,
    EngineChanged,
    MoveRole,
    ProbeEngine,
    Refuse,
    StartDecode,
    StartPrefill,
)
from narwhal.control.events import (
    EngineJoined,
    EngineRetired,
    EngineRevised,
    EngineUp,
    FirstToken,
    RequestFinished,
    RoleMoved,
    SettingsChanged,
    Tick,
    TokensObserved,
)
from narwhal.control.tenants import Share
from narwhal.fleet.model import Slo
from tests.control.driving import CURVES, Driver, check_sums, only, settings

OTHER: dict[str, Any] = {
    "slo": Slo(ttft_s=1.0, tpot_s=0.02),
    "serving": {"admission": "predictive", "margin": 0.5, "queue": {"max_requests": 3}, "max_retries": 0},
    "recovery": {"eject_after": 1, "readmit_after": 7},
}
CONTROLLERS: list[dict[str, Any]] = [
    {
        "policy": policy,
        "monitor_interval_s": 7.0,
        "min_prefill": 2,
        "thresholds": {"dwell_s": 3.0, "expand": 2.0},
        "reactive": {"step_s": 3.0, "window_s": 99.0, "evidence_span_s": 5.0, "confirmations": 4},
        "projection": {"step_s": 4.0, "window_s": 77.0, "short_window_s": 2.0, "gain": 0.5},
    }
    for policy in ("reactive", "projection")
]


def figures(thing: Any, path: str, seen: set[int], found: dict[str, Any]) -> dict[str, Any]:
    """Every number, text and section that is reachable, by where it stands."""
    if thing is None or isinstance(thing, bool | int | float | str):
        found[path] = thing
        return found
    if id(thing) in seen or callable(thing):
        return found
    seen.add(id(thing))
    if hasattr(type(thing), "model_fields"):
        found[path] = thing.model_dump()
    elif isinstance(thing, dict):
        for key, value in thing.items():
            name = f"{key.account.name}, {key.rank}" if isinstance(key, Share) else repr(key)
            figures(value, f"{path}[{name}]", seen, found)
    elif isinstance(thing, list | tuple | set | frozenset) or type(thing).__name__ in ("deque", "OrderedDict"):
        for number, value in enumerate(thing):
            figures(value, f"{path}[{number}]", seen, found)
    else:
        slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        for name in [*slots, *getattr(thing, "__dict__", {})]:
            figures(getattr(thing, name), f"{path}.{name}", seen, found)
    return found


@pytest.mark.parametrize("controller", CONTROLLERS, ids=lambda c: str(c["policy"]))
@pytest.mark.parametrize("before", ["reactive", "projection"])
def test_a_control_whose_settings_changed_is_one_that_was_made_with_them(
    before: str, controller: dict[str, Any]
) -> None:
    """No part may keep a figure of the old settings: every one that is reachable is compared."""
    wanted = settings(**OTHER, controller=controller)
    changed, made = Control(settings(controller={"policy": before})), Control(wanted)
    changed.handle(SettingsChanged(0.0, wanted.document()))
    made.handle(SettingsChanged(0.0, wanted.document()))
    found = figures(changed, "", set(), {})
    assert found == figures(made, "", set(), {})
    assert found[".settings.slo"] == {"ttft_s": 1.0, "tpot_s": 0.02, "ttft_by_prompt": [], "attainment": 0.95}
    assert any(value == 7.0 for path, value in found.items() if path.endswith("._interval_s"))


def test_a_control_has_settings_of_its_own() -> None:
    given = settings()
    first, second = Control(given), Control(given)
    first.handle(SettingsChanged(0.0, settings(**OTHER).document()))
    assert second.settings == given == settings()
    assert first.settings == settings(**OTHER)


def test_a_request_keeps_the_target_it_was_let_in_with() -> None:
    driver = Driver("pd", serving={"admission": "predictive"})
    driver.arrive(1, 1500)
    driver.feed(
        SettingsChanged(0.1, settings(serving={"admission": "predictive"}, slo=Slo(ttft_s=0.5, tpot_s=0.05)).document())
    )
    assert driver.pool.requests[1].ttft_s == 2.0
    assert only(driver.arrive(2, 1500), Refuse).status == 429
    only(driver.prefilled(1, 1.0), StartDecode)


def test_a_hold_outlives_a_reload() -> None:
    driver = Driver("pd", controller={"enabled": True})
    driver.control.roles.set_hold(0.0, True, "maintenance")
    driver.feed(SettingsChanged(0.1, settings(**OTHER, controller={"policy": "projection"}).document()))
    assert (driver.pool.hold, driver.pool.hold_reason) == (True, "maintenance")
    assert driver.control.roles.policy.name == "projection"


def test_a_shorter_step_is_not_waited_for_by_the_longer_one() -> None:
    driver = Driver("pd", controller={"reactive": {"step_s": 3600.0}, "monitor_interval_s": 3600.0})
    driver.feed(Tick(1.0))
    before = driver.control.roles.last
    driver.feed(SettingsChanged(2.0, settings(controller={"reactive": {"step_s": 1.0}}).document()))
    driver.feed(Tick(2.5))
    assert driver.control.roles.last is before
    driver.feed(Tick(3.5))
    assert driver.control.roles.last is not before


def test_a_longer_horizon_does_not_count_time_that_was_forgotten() -> None:
    driver = Driver("pd")
    demand = driver.control.demand
    for tenths in range(1000):
        demand.arrived(tenths / 10, 0.05)
    longer = {"projection": {"window_s": 90.0}, "reactive": {"window_s": 90.0}}
    driver.feed(SettingsChanged(100.0, settings(controller=longer).document()))
    assert demand.prefill.rate(90.0, 100.0) == pytest.approx(0.5, rel=0.02)


def test_an_engine_that_joins_is_probed_and_then_gets_work() -> None:
    driver = Driver("pd")
    joined = driver.feed(EngineJoined(1.0, "e9", "prefill", CURVES, True))
    assert only(joined, ProbeEngine).engine == "e9"
    driver.arrive(1, 2000)
    driver.arrive(2, 2000)
    waiting = driver.arrive(3, 2000)
    assert not [c for c in waiting if isinstance(c, StartPrefill)]
    assert only(driver.feed(EngineUp(1.1, "e9", "life-1")), StartPrefill).engine == "e9"


def streaming(driver: Driver, number: int) -> str:
    """A request whose stream has begun; the engine it runs on."""
    driver.arrive(number)
    engine = only(driver.prefilled(number), StartDecode).engine
    driver.feed(FirstToken(driver.t, number))
    return engine


def test_an_engine_that_is_taken_out_finishes_what_it_has() -> None:
    driver = Driver("pdd")
    engine = streaming(driver, 1)
    other = "e2" if engine == "e1" else "e1"
    leaving = only(driver.feed(EngineRetired(1.0, engine, 100.0)), EngineChanged)
    assert (leaving.engine, leaving.change) == (engine, "leaving")
    assert streaming(driver, 2) == other
    driver.feed(TokensObserved(2.0, (1,), (5,)))
    assert driver.feed(Tick(3.0)) == []
    assert engine in driver.pool.engines
    driver.feed(RequestFinished(4.0, 1, 6))
    assert only(driver.feed(Tick(4.1)), EngineChanged).change == "left"
    assert list(driver.pool.engines) == ["e0", other]
    assert not [c for c in driver.commands if isinstance(c, Abort | Refuse)]
    check_sums(driver.control)


def test_a_producer_stays_until_its_handoff_was_read() -> None:
    driver = Driver("ppd")
    producer = only(driver.arrive(1), StartPrefill).engine
    driver.feed(EngineRetired(0.5, producer, 100.0))
    driver.prefilled(1, 1.0)
    assert driver.engine(producer).prefills == {}
    assert driver.feed(Tick(2.0)) == []
    driver.feed(FirstToken(2.5, 1))
    assert only(driver.feed(Tick(3.0)), EngineChanged).change == "left"


def test_what_outlasts_its_time_is_ended_with_the_engine() -> None:
    driver = Driver("pdd")
    engine = streaming(driver, 1)
    driver.arrive(2)
    driver.prefilled(2)
    driver.feed(EngineRetired(1.0, engine, 10.0))
    driver.feed(EngineRetired(2.0, engine, 99.0))
    commands = driver.feed(Tick(10.0))
    assert only(commands, EngineChanged).change == "left"
    assert only(commands, Abort).request == 1
    assert list(driver.pool.requests) == [2]
    check_sums(driver.control)


def test_an_engine_comes_back_as_a_new_one() -> None:
    driver = Driver("pdd")
    driver.feed(EngineRetired(1.0, "e1", 100.0))
    driver.feed(Tick(1.1))
    driver.feed(EngineJoined(2.0, "e1", "prefill", CURVES, True))
    assert not driver.engine("e1").admitted
    driver.feed(EngineUp(2.1, "e1", "life-2"))
    assert driver.pool.split() == (2, 1)


def test_a_new_pin_moves_the_engine_or_says_what_holds_it() -> None:
    driver = Driver("pdd", controller={"enabled": True})
    commands = driver.feed(EngineRevised(1.0, "e1", CURVES, True, "prefill"))
    move = only(commands, MoveRole)
    driver.feed(RoleMoved(1.0, move.engine, move.role, move.epoch))
    assert (driver.engine("e1").role, driver.engine("e1").pin) == ("prefill", "prefill")
    held = only(driver.feed(EngineRevised(2.0, "e2", CURVES, True, "prefill")), Decided).decision
    assert held.outcome == "held"
    assert "min_decode" in held.reason
    assert driver.engine("e2").role == "decode"


def test_new_curves_price_what_comes_and_leave_what_is_charged() -> None:
    driver = Driver("pd")
    driver.arrive(1, 1000)
    engine = driver.engine("e0")
    engine.prefill_scale = 1.7
    driver.feed(EngineRevised(0.1, "e0", replace(CURVES, b_s=0.002), False))
    assert (engine.prefill_scale, engine.measured, engine.knows_prefill) == (1.0, False, False)
    assert engine.prefill_backlog_s == pytest.approx(1.0)
    driver.arrive(2, 1000)
    assert engine.prefill_backlog_s == pytest.approx(3.0)
    check_sums(driver.control)
