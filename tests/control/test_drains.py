"""Drains, readmissions and pins: what is refused changes nothing, and an engine is drained once nobody needs it."""

import msgspec
import pytest

from narwhal.control.commands import (
    Abort,
    AnyCommand,
    CheckEngine,
    Decided,
    EngineChanged,
    MoveRole,
    ProbeEngine,
    Resume,
    StartDecode,
    StartPrefill,
    StartWhole,
    TryPair,
)
from narwhal.control.events import (
    AnyEvent,
    DrainSet,
    EngineChecked,
    EngineDown,
    EngineObserved,
    EngineRevised,
    EngineUp,
    FirstToken,
    HoldSet,
    LeaseChanged,
    PairTried,
    PinSet,
    ReadmitRequested,
    RequestCancelled,
    RequestFinished,
    ResumeReady,
    Role,
    RoleMoved,
    Tick,
)
from narwhal.control.records import Decision
from narwhal.control.snapshot import Cut
from narwhal.control.succession import RoleMap, follow_map, role_map, succeed
from tests.control.driving import CURVES, Driver, check_sums, only


def decision(commands: list[AnyCommand]) -> Decision:
    return only(commands, Decided).decision


def changes(commands: list[AnyCommand]) -> list[tuple[str, str]]:
    return [(c.engine, c.change) for c in commands if isinstance(c, EngineChanged)]


def drain(driver: Driver, *engines: str, until_t: float = -1.0, stays: bool = False) -> list[AnyCommand]:
    commands = driver.feed(DrainSet(driver.t, engines, True, until_t, stays))
    assert decision(commands).outcome == "stay", commands
    return commands


def restarted(driver: Driver, name: str, t: float) -> list[AnyCommand]:
    """Another process of an engine proves itself; what that led to."""
    driver.feed(EngineDown(t, name, "connection", hard=True))
    commands: list[AnyCommand] = []
    for _ in range(4):
        t += 1.0
        commands += driver.feed(EngineUp(t, name, "life-2"))
        asked = [c for c in driver.commands if isinstance(c, CheckEngine) and c.engine == name]
        if any(isinstance(c, CheckEngine) for c in commands[-2:]):
            assert asked
            commands += driver.feed(EngineChecked(t, name, "life-2", "c"))
            for _ in range(3):  # a completion, and KV both ways
                trial = [c for c in driver.commands if isinstance(c, TryPair)][-1]
                commands += driver.feed(PairTried(t, trial.number, trial.producer, trial.consumer, "right"))
    return commands


def test_a_drained_engine_gets_nothing_new_and_is_drained_once_its_requests_are_done() -> None:
    driver = Driver("ppd")
    started = only(driver.arrive(1, t=1.0), StartPrefill)
    assert changes(drain(driver, started.engine)) == [(started.engine, "draining")]
    for number in range(2, 6):
        assert started.engine not in [c.engine for c in driver.arrive(number) if isinstance(c, StartPrefill)]
    assert changes(driver.feed(Tick(2.0))) == []
    driver.prefilled(1, 3.0)  # its handoff waits to be read
    assert changes(driver.feed(Tick(3.5))) == []
    driver.feed(FirstToken(4.0, 1))
    assert changes(driver.feed(Tick(4.5))) == [(started.engine, "drained")]
    assert changes(driver.feed(Tick(5.0))) == []  # said once


def test_a_handoff_that_nobody_will_read_keeps_its_producer_until_its_lease_ends() -> None:
    driver = Driver("ppd", kv_lease_s=30.0)
    started = only(driver.arrive(1, t=1.0), StartPrefill)
    only(driver.prefilled(1, 2.0), StartDecode)
    drain(driver, started.engine)
    driver.feed(RequestCancelled(3.0, 1))
    assert changes(driver.feed(Tick(31.9))) == []
    assert changes(driver.feed(Tick(32.1))) == [(started.engine, "drained")]


def test_a_handoff_whose_producer_serves_its_request_itself_is_kept_for_a_lease_too() -> None:
    driver = Driver("pdd", kv_lease_s=30.0)
    driver.arrive(1, t=1.0)
    for name in ("e1", "e2"):  # nobody is left to read it
        driver.feed(EngineDown(1.5, name, "connection", hard=True))
    assert only(driver.prefilled(1, 2.0), StartWhole).engine == "e0"
    driver.feed(RequestFinished(3.0, 1, 5))
    for name in ("e1", "e2"):
        driver.engine(name).ejected = False
    driver.pool.refresh()
    drain(driver, "e1")
    driver.engine("e0").role = "decode"  # so that no floor keeps it
    driver.feed(DrainSet(4.0, ("e0",), True))
    driver.engine("e0").draining = True
    assert ("e0", "drained") not in changes(driver.feed(Tick(31.9)))
    assert ("e0", "drained") in changes(driver.feed(Tick(32.1)))


def test_an_answer_in_one_piece_counts_as_read_a_lease_after_it_began() -> None:
    driver = Driver("ppd", kv_lease_s=30.0)
    started = only(driver.arrive(1, t=1.0), StartPrefill)
    driver.prefilled(1, 2.0)
    drain(driver, started.engine)
    assert changes(driver.feed(Tick(31.0))) == []
    assert changes(driver.feed(Tick(32.1))) == [(started.engine, "drained")]
    driver.feed(RequestFinished(40.0, 1, 5))
    assert driver.engine(started.engine).abandoned_times == []
    check_sums(driver.control)


def test_another_routers_requests_keep_an_engine_too() -> None:
    driver = Driver("ppd")
    driver.feed(EngineObserved(1.0, "e0", 2, 0, 100))
    drain(driver, "e0")
    assert changes(driver.feed(Tick(2.0))) == []
    driver.feed(EngineObserved(3.0, "e0", 0, 0, 0))
    assert changes(driver.feed(Tick(3.0))) == [("e0", "drained")]


def test_at_its_time_streams_go_on_elsewhere_prompts_are_sent_elsewhere_and_the_rest_ends() -> None:
    driver = Driver("pddd", serving={"admission": "open", "max_retries": 0})
    for number, resumable in ((1, True), (2, False), (3, True)):
        driver.arrive(number, t=float(number), resumable=resumable)
        driver.prefilled(number)
    engine = driver.pool.requests[1].decode_engine
    for number in (2, 3):
        request = driver.pool.requests[number]
        if request.decode_engine != engine:  # all three on one engine
            old, new = driver.engine(request.decode_engine), driver.engine(engine)
            old.streams, old.kv_tokens = old.streams - 1, old.kv_tokens - request.kv_tokens
            new.streams, new.kv_tokens = new.streams + 1, new.kv_tokens + request.kv_tokens
            request.decode_engine = engine
    driver.feed(FirstToken(4.0, 1))
    driver.feed(FirstToken(4.0, 2))
    drain(driver, engine, until_t=10.0)
    assert [c for c in driver.feed(Tick(9.0)) if isinstance(c, Resume | Abort | StartPrefill)] == []
    commands = driver.feed(Tick(10.0))
    assert only(commands, Resume).request == 1
    assert only(commands, Abort).request == 2
    assert "being stopped" in only(commands, Abort).message
    assert only(commands, StartPrefill).request == 3  # though no retry is allowed: nothing failed
    assert driver.pool.requests[3].excluded == ()
    check_sums(driver.control)
    started = [c for c in driver.feed(ResumeReady(11.0, 1, 120, 30)) if isinstance(c, StartPrefill)]
    assert [c.request for c in started] in ([1], [])
    assert changes(commands)[-1] == (engine, "drained")


@pytest.mark.parametrize(
    ("engines", "guard"),
    [
        (("e2",), ("min_decode", 0.0, 1.0)),
        (("e0", "e1"), ("min_prefill", 0.0, 1.0)),
        (("e0", "e1", "e2"), ("min_prefill", 0.0, 1.0)),
    ],
)
def test_a_drain_below_a_floor_is_refused_with_the_figures_and_changes_nothing(
    engines: tuple[str, ...], guard: tuple[str, float, float]
) -> None:
    driver = Driver("ppd")
    said = decision(driver.feed(DrainSet(1.0, engines, True)))
    assert said.outcome == "held"
    held = next(g for g in said.guards if not g.passed)
    assert (held.name, held.value, held.limit) == guard
    assert not any(driver.engine(name).draining for name in ("e0", "e1", "e2"))


def test_engines_that_stay_take_over_a_role_where_that_is_wanted() -> None:
    driver = Driver("ppddd")
    order = DrainSet(1.0, ("e0", "e1"), True, moves=True)
    commands = driver.feed(order)
    assert decision(commands).outcome == "moved"
    moved = only(commands, MoveRole)
    assert (moved.engine, moved.role) == ("e2", "prefill")
    assert changes(commands) == [("e0", "draining"), ("e1", "draining")]
    driver.feed(RoleMoved(1.1, "e2", "prefill", moved.epoch))
    assert only(driver.arrive(1), StartPrefill).engine == "e2"
    check_sums(driver.control)


@pytest.mark.parametrize(
    ("roles", "prepare", "guard"),
    [
        ("pd", [], "min_prefill"),  # the other role has none to spare
        ("pdd", [PinSet(0.5, "e1", "decode"), PinSet(0.5, "e2", "decode")], "min_prefill"),
        ("pdd", [HoldSet(0.5, True)], "hold"),
        ("pdd", [LeaseChanged(0.5, False)], "lease"),
    ],
)
def test_where_nobody_can_take_over_nothing_is_changed(roles: str, prepare: list[AnyEvent], guard: str) -> None:
    driver = Driver(roles)
    for event in prepare:
        driver.feed(event)
    commands = driver.feed(DrainSet(1.0, ("e0",), True, moves=True))
    assert guard in [each.name for each in decision(commands).guards if not each.passed]
    assert decision(commands).outcome == "held"
    assert [c for c in commands if not isinstance(c, Decided)] == []
    assert not driver.engine("e0").draining


def test_the_last_live_engine_is_never_drained() -> None:
    driver = Driver("pd", controller={"enabled": False, "min_prefill": 0, "min_decode": 0})
    drain(driver, "e0")
    said = decision(driver.feed(DrainSet(1.0, ("e1",), True)))
    assert (said.outcome, [g.name for g in said.guards if not g.passed]) == ("held", ["live"])


def test_draining_an_engine_that_is_out_breaks_no_floor() -> None:
    driver = Driver("ppd")
    driver.feed(EngineDown(1.0, "e2", "connection", hard=True))
    drain(driver, "e2")


def test_one_unknown_engine_refuses_the_whole_drain() -> None:
    driver = Driver("ppd")
    assert decision(driver.feed(DrainSet(1.0, ("e0", "e9"), True))).outcome == "held"
    assert not driver.engine("e0").draining


def test_a_drain_can_be_cancelled() -> None:
    driver = Driver("ppd")
    drain(driver, "e0", until_t=100.0)
    driver.feed(Tick(2.0))
    assert driver.engine("e0").drain.done
    commands = driver.feed(DrainSet(3.0, ("e0",), False))
    assert changes(commands) == [("e0", "undrained"), ("e0", "questioned")]
    assert only(commands, ProbeEngine).engine == "e0"
    assert not driver.engine("e0").open  # it may have been restarted since: a look tells
    driver.feed(EngineUp(3.1, "e0", "life-1"))
    assert driver.engine("e0").open
    assert (driver.engine("e0").drain.done, driver.engine("e0").drain.until_t) == (False, float("inf"))
    assert changes(driver.feed(DrainSet(4.0, ("e0",), False))) == []


def test_the_next_process_of_a_drained_engine_comes_back_by_itself_and_counts_as_no_restart() -> None:
    driver = Driver("ppd", recovery={"restarts": {"most": 1}})
    for number in range(3):
        t = 100.0 * number
        drain(driver, "e0")
        driver.feed(Tick(t + 1.0))
        driver.engine("e0").generation = driver.engine("e0").vitals.admitted = "life-1"
        driver.engine("e0").drain.life = "life-1"
        said = changes(restarted(driver, "e0", t + 2.0))
        assert said[-2:] == [("e0", "readmitted"), ("e0", "undrained")], (number, said)
        assert driver.engine("e0").open
    assert driver.engine("e0").vitals.starts_t == []


def test_a_drain_that_stays_outlives_the_process() -> None:
    driver = Driver("ppd")
    drain(driver, "e0", stays=True)
    driver.feed(Tick(1.0))
    assert changes(restarted(driver, "e0", 2.0))[-1] == ("e0", "readmitted")
    assert not driver.engine("e0").open
    assert changes(driver.feed(ReadmitRequested(20.0, ("e0",)))) == [("e0", "undrained"), ("e0", "questioned")]
    driver.feed(EngineUp(20.1, "e0", "life-2"))
    assert driver.engine("e0").open


def test_readmit_right_after_a_restart_sends_nothing_to_a_process_that_has_not_proven_itself() -> None:
    driver = Driver("ppd")
    drain(driver, "e0")
    driver.feed(Tick(1.0))
    driver.feed(ReadmitRequested(2.0, ("e0",)))  # no look has seen the new process yet
    for number in range(4):
        assert "e0" not in [c.engine for c in driver.arrive(number) if isinstance(c, StartPrefill)]
    assert ("e0", "ejected") in changes(driver.feed(EngineUp(2.5, "e0", "life-2")))


def test_readmit_does_away_with_the_limit_on_restarts_and_with_waiting() -> None:
    driver = Driver("ppd", recovery={"restarts": {"most": 1}, "readmit_after": 1, "readmit_backoff_s": 100})
    for t in (1.0, 2.0, 3.0):
        driver.feed(EngineUp(t, "e0", f"life-{t}"))
    said = driver.feed(EngineUp(4.0, "e0", "life-3.0"))
    assert "started 3 times" in driver.engine("e0").vitals.reason, said
    commands = driver.feed(ReadmitRequested(5.0, ("e0",)))
    assert only(commands, ProbeEngine).engine == "e0"
    assert only(driver.feed(EngineUp(5.1, "e0", "life-3.0")), CheckEngine).engine == "e0"


def test_a_pin_moves_its_engine_and_is_answered_like_a_move() -> None:
    driver = Driver("ppdd", controller={"enabled": True, "thresholds": {"dwell_s": 0, "cooldown_s": 0}})
    commands = driver.feed(PinSet(1.0, "e0", "decode"))
    moved = only(commands, MoveRole)
    assert (moved.engine, moved.role, decision(commands).outcome) == ("e0", "decode", "moved")
    assert changes(commands) == [("e0", "pinned")]
    driver.feed(RoleMoved(1.1, "e0", "decode", moved.epoch))
    assert driver.engine("e0").role == driver.engine("e0").pin == "decode"
    assert changes(driver.feed(PinSet(2.0, "e0", None))) == [("e0", "unpinned")]
    assert driver.engine("e0").pin is None


def test_a_pin_whose_move_is_held_leaves_the_engine_as_it_was() -> None:
    driver = Driver("pdd")
    commands = driver.feed(PinSet(1.0, "e0", "decode"))
    assert decision(commands).outcome == "held"
    assert [g.name for g in decision(commands).guards if not g.passed] == ["min_prefill"]
    assert driver.engine("e0").pin is None
    assert changes(commands) == []


def test_the_fleet_files_pin_counts_again_once_it_changes() -> None:
    driver = Driver("ppd")

    def revise(t: float, pin: Role | None) -> None:
        driver.feed(EngineRevised(t, "e0", CURVES, True, pin))

    driver.feed(PinSet(1.0, "e0", "prefill"))
    revise(2.0, None)  # such as a profile that was learned
    assert driver.engine("e0").pin == "prefill"
    revise(3.0, "prefill")
    revise(4.0, None)
    assert driver.engine("e0").pin is None


@pytest.mark.parametrize(
    "order", [DrainSet(2.0, ("e0",), True), ReadmitRequested(2.0, ("e0",)), PinSet(2.0, "e0", "prefill")]
)
def test_without_a_proven_lease_nothing_is_changed(order: DrainSet | ReadmitRequested | PinSet) -> None:
    driver = Driver("ppd")
    driver.feed(LeaseChanged(1.0, False))
    said = decision(driver.feed(order))
    assert (said.outcome, [g.name for g in said.guards if not g.passed]) == ("held", ["lease"])
    engine = driver.engine("e0")
    assert (engine.draining, engine.pin) == (False, None)


def test_drains_and_pins_survive_in_the_map_and_in_what_is_left_behind() -> None:
    driver = Driver("ppdd")
    drain(driver, "e0", until_t=100.0)
    drain(driver, "e3", stays=True)
    driver.feed(PinSet(1.0, "e1", "prefill"))
    driver.feed(Tick(2.0))
    found = msgspec.json.decode(msgspec.json.encode(role_map(driver.pool)), type=RoleMap)
    assert {n: (e.drains, e.drain_life) for n, e in found.engines.items() if e.drains} == {
        "e0": (True, "life-1"),
        "e3": (True, ""),
    }
    fresh = Driver("ppdd")
    follow_map(fresh.control, found)
    assert [n for n, e in fresh.pool.engines.items() if e.draining] == ["e0", "e3"]
    assert fresh.engine("e1").pin == "prefill"
    state = msgspec.json.decode(msgspec.json.encode(Cut(driver.control, residents=False).state()))
    after = succeed(driver.settings, state, 1000.0, t=1002.0)
    follow_map(after, found)
    assert after.pool.engines["e0"].drain.until_t == 1100.0
    assert not after.pool.engines["e0"].drain.done  # the dead router's handoffs may still be read
    after.handle(Tick(1033.0))
    assert after.pool.engines["e0"].drain.done
