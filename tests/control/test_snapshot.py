"""A control that is read back from its state answers everything as the one that was written."""

import random
from typing import Any

import msgspec
import pytest

from narwhal.control.events import EngineObserved, HoldSet, Tick
from narwhal.control.snapshot import MADE, PARTS, PIECE, Cut, SnapshotError, as_read, restore
from narwhal.control.state import Phase, Request
from tests.control.driving import Driver
from tests.control.test_reload import figures
from tests.property.test_control import World

MODES = [(admission, policy) for admission in ("open", "predictive") for policy in ("reactive", "projection")]


def busy(seed: int, steps: int) -> Driver:
    """A fleet after some random seconds of arrivals, moves, failures and reloads."""
    world = World(seed)
    for _ in range(steps):
        world.step()
    return world.driver


@pytest.mark.parametrize("seed", range(12))
def test_every_figure_that_is_reachable_comes_back(seed: int) -> None:
    control = busy(seed, 400).control
    again = restore(control.settings, as_read(control))
    found, expected = (figures(one, "", set(), {}) for one in (again, control))
    names = [path for path in expected if not any(f".roles.{name}" in path for name in MADE)]
    assert len(names) > 100
    assert {path: found.get(path) for path in names} == {path: expected[path] for path in names}


@pytest.mark.parametrize("seed", range(12))
def test_it_goes_on_as_if_nothing_had_happened(seed: int) -> None:
    world = World(seed)
    for _ in range(300):
        world.step()
    control = world.driver.control
    again = restore(control.settings, as_read(control))
    begin = len(world.driver.events)
    answers: list[Any] = []
    handle = control.handle
    world.driver.control.handle = lambda event: answers.append(handle(event)) or answers[-1]  # type: ignore[method-assign, func-returns-value]
    for _ in range(300):
        world.step()
    assert [again.handle(event) for event in world.driver.events[begin:]] == answers
    assert as_read(again) == as_read(control)


def test_long_histories_come_back_to_the_bit() -> None:
    driver = Driver("ppdd", controller={"enabled": True})
    rng = random.Random(1)
    for number in range(6000):
        driver.arrive(number, rng.randint(1, 3000), t=number * 0.01)
    control = driver.control
    state = as_read(control)
    again = restore(control.settings, state)
    assert '["a",' in msgspec.json.encode(state).decode()
    assert as_read(again) == as_read(control)
    for event in (Tick(61.0), EngineObserved(61.5, "e0", 1, 2, 300), HoldSet(62.0, True, "night"), Tick(63.0)):
        assert again.handle(event) == control.handle(event)
    assert again.pool.hold_reason == "night"


def test_a_state_holds_no_settings_and_no_decision() -> None:
    control = busy(3, 100).control
    text = msgspec.json.encode(as_read(control)).decode()
    assert '"ttft_by_prompt"' not in text
    assert '"candidates"' not in text


def test_a_thing_that_is_not_known_to_be_state_is_refused_when_it_is_as_read() -> None:
    control = Driver("pd").control
    control.pool.handoff_s = object()  # type: ignore[assignment]
    with pytest.raises(TypeError, match="is not known to be state of control"):
        Cut(control)


def test_a_request_that_waits_but_is_not_known_is_refused_when_it_is_written() -> None:
    driver = Driver("pd")
    for number in range(9):
        driver.arrive(number, 1000)
    waiting = [request.id for request in driver.pool.queue]
    del driver.pool.requests[waiting[-1]]
    with pytest.raises(TypeError, match="not known by its number"):
        Cut(driver.control)


def test_a_state_of_another_version_is_refused_when_it_is_read() -> None:
    control = busy(5, 50).control
    for spoil in (
        lambda state: state.pop("fields"),
        lambda state: state["parts"].pop(),
        lambda state: state["fields"]["Engine"].append("colour"),
        lambda state: state["fields"].pop("Pool"),
        lambda state: state["fields"].update(Pool=["engines"]),
        lambda state: state.pop("accounts"),
        lambda state: state.pop("requests"),
        lambda state: state["fields"]["Request"].append("colour"),
        lambda state: state["requests"].append([0]),
        lambda state: state.update(parts=[["c", "Popen", 0, "ls"]] * 5),
    ):
        state = as_read(control)
        spoil(state)  # type: ignore[no-untyped-call]
        with pytest.raises(SnapshotError):
            restore(control.settings, state)


@pytest.mark.parametrize("seed", range(6))
def test_a_cut_does_not_change_while_control_goes_on(seed: int) -> None:
    world = World(seed)
    for _ in range(200):
        world.step()
    cut, taken = Cut(world.driver.control), as_read(world.driver.control)
    for _ in range(200):
        world.step()
    assert as_read(world.driver.control) != taken
    assert msgspec.json.decode(msgspec.json.encode(cut.state())) == taken


def test_requests_are_written_in_pieces_with_a_pause_after_each() -> None:
    driver = Driver("pd")
    driver.control.pool.requests.clear()
    share = driver.pool.accounts["default"].share(None)
    driver.pool.requests |= {n: Request(n, share, "", n, 10) for n in range(2 * PIECE + 1)}
    pauses: list[int] = []
    state = Cut(driver.control).state(lambda: pauses.append(0))
    assert len(pauses) == 3 + len(PARTS)
    again = restore(driver.settings, msgspec.json.decode(msgspec.json.encode(state)))
    assert [r.prompt_tokens for r in again.pool.requests.values()] == list(range(2 * PIECE + 1))
    assert {r.share for r in again.pool.requests.values()} == {again.pool.accounts["default"].share(None)}


def test_phases_and_infinities_have_words() -> None:
    control = Driver("pd").control
    assert '["f","-inf"]' in msgspec.json.encode(as_read(control)).decode()
    driver = Driver("p")
    driver.arrive(1)
    again = restore(driver.settings, as_read(driver.control))
    assert again.pool.requests[1].phase in Phase
    assert again.pool.requests[1].phase is driver.pool.requests[1].phase
