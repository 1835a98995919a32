"""`Control` under random histories: nothing leaks, nothing is answered twice, nothing is sent where it may not."""

import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.control import Control
from narwhal.control.commands import (
    Abort,
    AnyCommand,
    CheckEngine,
    MoveRole,
    Refuse,
    Resume,
    StartDecode,
    StartPrefill,
    StartWhole,
    TryPair,
    Wait,
)
from narwhal.control.events import (
    AnyEvent,
    CanaryArmed,
    DeadlinePassed,
    DrainSet,
    EngineChecked,
    EngineDown,
    EngineJoined,
    EngineObserved,
    EngineRetired,
    EngineRevised,
    EngineUp,
    FirstToken,
    LegFailed,
    PairTried,
    PinSet,
    PrefillFinished,
    ReadmitRequested,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    ResumeFailed,
    ResumeReady,
    RoleMoved,
    SettingsChanged,
    Tick,
    TokensObserved,
)
from narwhal.control.state import Settings
from narwhal.fleet.model import Slo, TenantLimits
from tests.control.driving import CURVES, Driver, check_sums
from tests.control.driving import settings as control_settings

TENANTS = ("a", "b", "c")
MODES = {"admission": ["open", "predictive"], "policy": ["reactive", "projection"]}


class World:
    """Plays the driver's part: carries commands out, invents what happens next, and checks every command."""

    def __init__(self, seed: int, *, crowded: bool = False) -> None:
        """`crowded`: two tenants, short prompts, one healthy engine of each role: what decode cannot take waits."""
        self.random = random.Random(seed)
        self.pick = self.random.choice
        self.crowded = crowded
        self.longest = 60 if crowded else 3000
        roles = "pd" + "".join(self.pick("pd") for _ in range(self.random.randint(0, 6)))
        self.driver = Driver(
            "pd" if crowded else roles,
            serving={
                "admission": "predictive" if crowded else self.pick(MODES["admission"]),
                "queue": {"max_requests": 20},
            },
            controller={"policy": self.pick(MODES["policy"])},
            tenants=self._tenants(),
        )
        self.names = list(self.driver.pool.engines)
        self.generations = dict.fromkeys(self.names, 1)
        self.running: dict[int, AnyCommand] = {}
        self.prefilled: dict[int, float] = {}
        self.probes: list[TryPair | CheckEngine] = []
        self.ended: set[int] = set()
        self.failed: dict[int, set[str]] = {}
        self.seen = 0
        self.resumed = 0
        self.next = 0
        self.t = 0.0

    def step(self) -> None:
        """One random event, its commands, and the checks."""
        self.t += self.random.expovariate(10)
        event = self._event()
        if isinstance(event, RequestFinished | RequestCancelled):
            self.ended.add(event.request)
            self.running.pop(event.request, None)
        elif isinstance(event, PrefillFinished):
            self.prefilled[event.request] = event.t
            self.running.pop(event.request, None)
        elif isinstance(event, LegFailed):
            self.failed.setdefault(event.request, set()).add(event.engine)
            self.running.pop(event.request, None)
            if event.cause == "client":
                self.ended.add(event.request)
        self._carry_out(self.driver.feed(event))
        check_sums(self.driver.control)
        assert set(self.driver.pool.requests) == set(range(self.next)) - self.ended

    def _event(self) -> AnyEvent:
        t, kind = self.t, self.random.random()
        if kind < 0.3 or not self.running:
            self.next += 1
            whole = self.random.random() < 0.1
            tenant = self.pick(TENANTS) if self.driver.control.settings.tenants else "default"
            tokens, priority = self.random.randint(1, self.longest), self.pick([None, None, "batch"])
            resumable = not whole and self.random.random() < 0.7
            return RequestArrived(t, self.next - 1, tokens, 50, whole, tenant, "", t, priority, resumable)
        if kind < 0.4:
            return Tick(t)
        if self.crowded:
            number = self.pick(list(self.running))
            return self._progress(number, self.running[number], t)
        if kind < 0.6 and self.probes and self.random.random() < 0.7:
            return self._probed(t, self.probes.pop(self.random.randrange(len(self.probes))))
        name = self.pick(self.names)
        if kind < 0.41:
            return CanaryArmed(t, self.pick([0, 60, 60]))
        if kind < 0.43:
            return EngineDown(t, name, "timeout", hard=self.random.random() < 0.5)
        if kind < 0.5:
            self.generations[name] += self.random.random() < 0.1
            return EngineUp(t, name, f"life-{self.generations[name]}")
        if kind < 0.52:
            return self._order(t, name)
        if kind < 0.54:
            load = self.random.randint(0, 9), self.random.randint(0, 3), self.random.randint(0, 9999)
            pace = self.random.randint(0, 99), self.random.randint(0, 20), self.random.choice([0.01, 0.02, 0.09])
            return EngineObserved(t, name, *load, *pace, self.random.randint(0, 2))
        if kind < 0.6:
            return self._reload(name, t)
        number = self.pick(list(self.running))
        return self._progress(number, self.running[number], t)

    def _order(self, t: float, name: str) -> AnyEvent:
        """What an operator may ask for."""
        chance = self.random.random()
        engines = tuple(dict.fromkeys((name, self.pick(self.names))))
        if chance < 0.6:
            until_t = self.pick([-1.0, t, t + self.random.expovariate(0.5)])
            return DrainSet(t, engines, self.random.random() < 0.5, until_t, self.pick([True, False]))
        return PinSet(t, name, self.pick([None, "prefill", "decode"])) if chance < 0.7 else ReadmitRequested(t, engines)

    def _probed(self, t: float, probe: TryPair | CheckEngine) -> AnyEvent:
        """What a probe comes to."""
        if isinstance(probe, CheckEngine):
            problem = self.pick(["", "", "", "it serves another model"])
            life = f"life-{self.generations.get(probe.engine, 1)}"
            told = self.pick(["", "f1", "f1", "f2"]), self.pick(["", "a1", "a1", "a2"])
            return EngineChecked(t, probe.engine, life, self.pick(["c1", "c1", "c2"]), problem, *told)
        outcome = self.pick(["right"] * 6 + ["wrong", "leg_1", "leg_2", "untold"])
        reference = self.pick(["a", "a", "a", "b"]) if probe.purpose == "canary" else ""
        return PairTried(t, probe.number, probe.producer, probe.consumer, outcome, "a", reference, 0.1, 1000, "pull")

    def _reload(self, name: str, t: float) -> AnyEvent:
        """Something that a changed fleet file leads to."""
        chance, pin = self.random.random(), self.pick([None, None, "prefill", "decode"])
        curves = msgspec.structs.replace(CURVES, b_s=self.pick([0.0005, 0.001, 0.004]))
        if chance < 0.25:
            return SettingsChanged(t, self._settings().document())
        if chance < 0.5:
            return EngineRetired(t, name, t + self.random.expovariate(0.3))
        if chance < 0.85:
            return EngineJoined(t, name, self.pick(["prefill", "decode"]), curves, True, pin)
        return EngineRevised(t, name, curves, self.random.random() < 0.8, pin)

    def _settings(self) -> Settings:
        return control_settings(
            slo=Slo(ttft_s=self.pick([0.5, 2.0]), tpot_s=self.pick([0.015, 0.05])),
            serving={
                "admission": self.pick(MODES["admission"]),
                "queue": {"max_requests": self.pick([0, 20])},
                "prefill_in_flight": self.pick([1, 4]),
                "max_retries": self.pick([0, 2]),
                "retry_budget": {"reserve": self.pick([0, 3, 1000])},
                "continuation": {
                    "enabled": self.pick([True, True, False]),
                    "budget": {"reserve": self.pick([1, 1000])},
                },
            },
            controller={"policy": self.pick(MODES["policy"]), "enabled": self.random.random() < 0.8},
            recovery={"degraded": self.pick(["aggregate", "refuse"])},
            tenants=self._tenants(),
        )

    def _tenants(self) -> tuple[TenantLimits, ...]:
        """None, or some of the tenants that send: one that a reload took out may still have requests."""
        if self.crowded:
            return tuple(TenantLimits(name=name, weight=weight) for name, weight in (("a", 3), ("b", 1)))
        return tuple(
            TenantLimits(
                name=name,
                weight=self.pick([0.5, 1.0, 3.0]),
                priority=self.pick(["interactive", "interactive", "batch"]),
                max_concurrency=self.pick([None, None, 3]),
                tokens_per_minute=self.pick([None, None, 20_000]),
            )
            for name in TENANTS[: self.pick([0, 2, 3])]
        )

    def _progress(self, number: int, command: AnyCommand, t: float) -> AnyEvent:
        if isinstance(command, Wait):
            return (
                DeadlinePassed(t, number, command.what) if self.random.random() < 0.5 else RequestCancelled(t, number)
            )
        if isinstance(command, Resume):
            return self._resumed(number, command, t)
        assert isinstance(command, StartPrefill | StartDecode | StartWhole)
        leg = {StartPrefill: "prefill", StartDecode: "decode", StartWhole: "whole"}[type(command)]
        chance = self.random.random()
        if chance < 0.15:
            return LegFailed(
                t,
                number,
                leg,  # type: ignore[arg-type]
                command.engine,
                self.pick(["connection", "timeout", "status", "stream", "handoff", "overload", "client"]),
                visible=self.driver.pool.requests[number].first_token,
                status=self.pick([0, 500]),
            )
        if chance < 0.17 and self.driver.pool.requests[number].first_token:
            self.failed.setdefault(number, set()).add(command.engine)
            self.running.pop(number)
            return DeadlinePassed(t, number, "gap")
        if chance < 0.2:
            return RequestCancelled(t, number)
        if isinstance(command, StartPrefill):
            return PrefillFinished(t, number, self.random.randint(0, 3000))
        if chance < 0.5:
            return FirstToken(t, number)
        if chance < 0.8:
            return TokensObserved(t, (number,), (self.random.randint(1, 20),))
        return RequestFinished(t, number, 5)

    def _resumed(self, number: int, command: Resume, t: float) -> AnyEvent:
        """What comes of a stream whose engine was lost."""
        chance = self.random.random()
        if chance < 0.6:
            return ResumeReady(t, number, self.random.randint(1, 3000), self.random.randint(1, 50))
        if chance < 0.7:
            self.failed.setdefault(number, set()).add(command.engine)
            return DeadlinePassed(t, number, "resume")
        if chance < 0.8:
            return RequestCancelled(t, number)
        engine = self.pick([command.engine, ""])
        self.failed.setdefault(number, set()).add(engine)
        return ResumeFailed(t, number, engine, "a reason")

    def _carry_out(self, commands: list[AnyCommand]) -> None:
        for command in commands:
            if isinstance(command, MoveRole):
                self._carry_out(self.driver.feed(RoleMoved(self.t, command.engine, command.role, command.epoch)))
            elif isinstance(command, TryPair | CheckEngine):
                self.probes.append(command)
            elif isinstance(command, StartPrefill | StartDecode | StartWhole | Wait | Resume):
                self.resumed += isinstance(command, Resume)
                self._check_start(command)
                self.running[command.request] = command
            elif isinstance(command, Refuse | Abort):
                assert command.request not in self.ended, "ended twice"
                self.ended.add(command.request)
                self.running.pop(command.request, None)

    def _check_start(self, command: StartPrefill | StartDecode | StartWhole | Wait | Resume) -> None:
        assert command.request not in self.ended
        if isinstance(command, Wait):
            return
        if isinstance(command, Resume):
            assert self.driver.pool.requests[command.request].resumable
            assert command.engine not in self.failed.get(command.request, set()), "asked an engine that failed it"
            return
        engine = self.driver.engine(command.engine)
        assert engine.admitted
        assert not engine.ejected
        assert not engine.draining
        assert engine.leaves_t is None
        assert command.engine not in self.failed.get(command.request, set()), "went back to an engine that failed it"
        if isinstance(command, StartDecode):
            prefilled_t = self.prefilled.pop(command.request)  # KeyError: the handoff was used twice
            assert self.t - prefilled_t <= 15.0, "handoff used after half its lease"
            assert command.engine != command.producer
            producer = self.driver.pool.engines.get(command.producer)
            assert producer is None or producer.fingerprint == engine.fingerprint, "handed over to another cohort"
            assert command.engine not in self.driver.pool.severed.get(command.producer, ()), "over a link that is out"


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_histories(seed: int) -> None:
    world = World(seed)
    for _ in range(300):
        world.step()


def test_random_histories_in_which_requests_of_tenants_wait_for_decode() -> None:
    held, waits = 0, 0
    for seed in range(30):
        world = World(seed, crowded=True)
        for _ in range(300):
            world.step()
            held = max(held, len(world.driver.pool.held))
            waits += bool(world.driver.pool.held)
    assert held > 1
    assert waits > 30


def test_random_histories_hold_streams_that_go_on() -> None:
    worlds = [World(seed) for seed in range(20)]
    for world in worlds:
        for _ in range(300):
            world.step()
    assert sum(world.resumed for world in worlds) > 8


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_same_events_give_the_same_commands(seed: int) -> None:
    first, second = World(seed), World(seed)
    for _ in range(200):
        first.step()
        second.step()
    assert first.driver.commands == second.driver.commands


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_was_written_down_replays_reloads_included(seed: int) -> None:
    world = World(seed)
    for _ in range(100):
        world.step()
    world._carry_out(world.driver.feed(SettingsChanged(world.t, world._settings().document())))
    for _ in range(100):
        world.step()
    lines = [msgspec.json.encode(event) for event in world.driver.events]
    again = Control(world.driver.settings)
    events = msgspec.json.Decoder(AnyEvent)
    assert [command for line in lines for command in again.handle(events.decode(line))] == world.driver.commands


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), jump=st.sampled_from([-1e6, -5.0, 1e6, 3600.0]))
def test_time_that_jumps_does_no_harm(seed: int, jump: float) -> None:
    world = World(seed)
    for number in range(120):
        if number == 60:
            world.t += jump
            world.prefilled.clear()
            world.running = {n: c for n, c in world.running.items() if not isinstance(c, Wait) or c.what != "seat"}
            for waiting in [r.id for r in world.driver.pool.requests.values() if r.phase.value == "seat"]:
                world._carry_out(world.driver.feed(RequestCancelled(world.t, waiting)))
                world.ended.add(waiting)
        world.step()
