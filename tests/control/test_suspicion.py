"""Whose fault a failed handoff is: random single faults, and nobody innocent is taken out for one."""

import random
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.control.commands import (
    Abort,
    AnyCommand,
    CheckEngine,
    EngineChanged,
    PairChanged,
    ProbeEngine,
    Refuse,
    StartDecode,
    StartPrefill,
    StartWhole,
    TryPair,
    Wait,
)
from narwhal.control.events import (
    AnyEvent,
    DeadlinePassed,
    EngineChecked,
    EngineDown,
    EngineUp,
    FirstToken,
    LegFailed,
    Outcome,
    PairTried,
    PrefillFinished,
    RequestFinished,
    Tick,
)
from narwhal.control.suspicion import Case, judge
from tests.control.driving import Driver, check_sums

Kind = Literal["producer", "consumer", "link", "dead", "none"]


@dataclass
class Fault:
    """One thing that is broken, and nothing else."""

    kind: Kind
    engine: str
    other: str

    def breaks(self, producer: str, consumer: str) -> bool:
        """Whether KV does not come over from one to the other."""
        if self.kind == "link":
            return (producer, consumer) == (self.engine, self.other)
        return {"producer": producer, "consumer": consumer}.get(self.kind) == self.engine or self.dead(consumer)

    def dead(self, engine: str) -> bool:
        """Whether an engine answers nothing."""
        return self.kind == "dead" and engine == self.engine


class World:
    """Requests, one after the other, over a fleet with a fault; every command is answered as the fault has it."""

    def __init__(self, roles: str, fault: Fault, seed: int) -> None:
        self.driver = Driver(roles, recovery={"readmit_backoff_s": 1})
        self.fault = fault
        self.random = random.Random(seed)
        self.t = 0.0
        self.waiting: list[AnyCommand] = []
        self.served = self.failed = 0
        self.hits = 0
        """Legs that met the fault."""

    def run(self, requests: int) -> None:
        """Serve so many requests, with looks and ticks between them."""
        for number in range(requests):
            self.feed([lambda t, n=number: self.driver.arrive(n, t=t)])
            if number % 5 == 4:
                for name in list(self.driver.pool.engines):
                    self.look(name)
            self.feed([lambda t: self.driver.feed(Tick(t))])
            check_sums(self.driver.control)

    def feed(self, actions: list[Any]) -> None:
        """Do something, then answer every command in a random order until nothing is left."""
        for action in actions:
            self.t += 0.2
            self.waiting += action(self.t)
        while self.waiting:
            command = self.waiting.pop(self.random.randrange(len(self.waiting)))
            event = self.answer(command)
            if event is not None:
                self.waiting += self.driver.feed(event)

    def look(self, name: str) -> None:
        self.feed([lambda t: self.driver.feed(self.seen(name))])

    def seen(self, name: str) -> AnyEvent:
        return EngineDown(self.t, name, "timeout") if self.fault.dead(name) else EngineUp(self.t, name, "life-1")

    def answer(self, command: AnyCommand) -> AnyEvent | None:
        self.t += self.random.uniform(0.01, 0.1)
        t, fault = self.t, self.fault
        if isinstance(command, ProbeEngine):
            return self.seen(command.engine)
        if isinstance(command, CheckEngine):
            return EngineChecked(t, command.engine, "life-1", "c")
        if isinstance(command, TryPair):
            return PairTried(t, command.number, command.producer, command.consumer, self.outcome(command))
        if isinstance(command, Wait | Refuse | Abort):
            self.failed += isinstance(command, Refuse | Abort)
            return None
        if not isinstance(command, StartPrefill | StartDecode | StartWhole):
            return None
        if self.driver.pool.requests.get(command.request) is None:
            return None
        serving = self.driver.pool.requests[command.request].serving
        if serving != command.engine:
            return None  # it was sent on meanwhile
        reads = isinstance(command, StartDecode) and fault.breaks(command.producer, command.engine)
        self.hits += reads or fault.dead(command.engine)
        if isinstance(command, StartDecode) and reads:
            return self.broken(command)
        if fault.dead(command.engine):
            return DeadlinePassed(t, command.request, "prefill" if isinstance(command, StartPrefill) else "first_token")
        if isinstance(command, StartPrefill):
            return PrefillFinished(t, command.request, 0)
        self.served += 1
        self.waiting += self.driver.feed(FirstToken(t, command.request))
        return RequestFinished(t, command.request, 5)

    def broken(self, command: StartDecode) -> AnyEvent:
        """A handoff that fails, as engines tell it."""
        t, number = self.t, command.request
        how = self.random.randrange(3)
        if how == 0 or self.fault.kind == "dead":
            return DeadlinePassed(t, number, "first_token")
        cause: Any = "stream" if how == 1 else "status"
        return LegFailed(t, number, "decode", command.engine, cause, status=500)

    def outcome(self, command: TryPair) -> Outcome:
        if self.fault.dead(command.producer):
            return "leg_1"
        if command.producer == command.consumer:
            return "right"
        return "leg_2" if self.fault.breaks(command.producer, command.consumer) else "right"

    def ejected(self) -> set[str]:
        """Engines that were ever ejected."""
        return {c.engine for c in self.driver.commands if isinstance(c, EngineChanged) and c.change == "ejected"}

    def severed(self) -> set[tuple[str, str]]:
        """Pairs that were ever taken out."""
        out = [c for c in self.driver.commands if isinstance(c, PairChanged) and c.change == "out"]
        return {(c.producer, c.consumer) for c in out}


@settings(max_examples=150, deadline=None)
@given(
    prefill=st.integers(1, 3), decode=st.integers(1, 3), kind=st.sampled_from(["producer", "consumer", "link", "dead"]),
    at=st.integers(0, 5), seed=st.integers(0, 2**32),
)  # fmt: skip
def test_nobody_innocent_is_taken_out_for_a_single_fault(
    prefill: int, decode: int, kind: Any, at: int, seed: int
) -> None:
    names = [f"e{n}" for n in range(prefill + decode)]
    engine = names[at % prefill] if kind in ("producer", "link") else names[at % len(names)]
    world = World("p" * prefill + "d" * decode, Fault(kind, engine, names[prefill + at % decode]), seed)
    world.run(40)
    fault = world.fault
    guilty = set() if kind == "link" else {engine}
    assert world.ejected() <= guilty
    if kind == "link":
        assert world.severed() <= {(fault.engine, fault.other)}
    else:
        assert all(engine in pair for pair in world.severed())
    assert all(e.open for name, e in world.driver.pool.engines.items() if name not in guilty), "innocent, and held"
    if min(prefill, decode) >= 2:
        assert not world.hits or world.ejected() or world.severed(), "met, and not found out"
        assert world.hits <= 6, "met again and again"
        assert world.served == 40


def test_without_a_fault_nothing_is_taken_out() -> None:
    world = World("ppdd", Fault("none", "", ""), 1)
    world.run(60)
    assert (world.served, world.failed) == (60, 0)
    assert (world.ejected(), world.severed()) == (set(), set())


def case(pair: Outcome, producer: Outcome, consumer: Outcome, *, peer: bool = True, alone: bool = False) -> Case:
    found = Case("a", "a" if alone else "b", "timeout", peers=["c"] if peer else [])
    found.results = {"pair": pair, "producer": producer, "consumer": consumer}
    return found


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (case("right", "right", "right"), "nobody"),
        (case("leg_2", "right", "right"), "link"),
        (case("leg_2", "leg_2", "right"), "producer"),
        (case("leg_1", "leg_1", "right"), "producer"),
        (case("leg_2", "right", "leg_2"), "consumer"),
        (case("leg_2", "right", "leg_1"), "unknown"),  # it was the peer that gave no KV
        (case("leg_2", "leg_2", "leg_2"), "unknown"),  # the peer may be the one that is ill
        (case("leg_2", "untold", "right"), "unknown"),
        (case("leg_2", "right", "leg_1", peer=False), "consumer"),
        (case("leg_2", "leg_1", "right", peer=False), "producer"),
        (case("leg_2", "right", "right", peer=False), "link"),
        (case("right", "right", "right", alone=True), "nobody"),
        (case("right", "leg_1", "right", alone=True), "producer"),
        (case("right", "untold", "right", alone=True), "unknown"),
    ],
)
def test_a_verdict(found: Case, verdict: str) -> None:
    assert judge(found) == verdict


def test_sides_are_held_back_while_probes_run_and_the_last_of_a_role_is_not() -> None:
    driver = Driver("pdd")
    driver.arrive(1)
    consumer = driver.pool.requests[1] and driver.prefilled(1)[-1]
    assert isinstance(consumer, StartDecode)
    driver.feed(DeadlinePassed(30.0, 1, "first_token"))
    assert driver.engine("e0").open  # the only producer
    assert not driver.engine(consumer.engine).open
    for probe in [c for c in driver.commands if isinstance(c, TryPair)]:
        driver.feed(PairTried(30.5, probe.number, probe.producer, probe.consumer, "right"))
    assert driver.engine(consumer.engine).open


def test_a_probe_that_nobody_reports_holds_nobody_for_long() -> None:
    driver = Driver("ppdd")
    driver.arrive(1)
    driver.prefilled(1)
    driver.feed(DeadlinePassed(30.0, 1, "first_token"))
    assert sum(not engine.open for engine in driver.pool.engines.values()) == 2
    for second in range(31, 300):
        driver.feed(Tick(float(second)))
    assert all(engine.open for engine in driver.pool.engines.values())
    assert not driver.control.health.trials.open
