"""Whatever happens: floors and pins hold, no guard is overruled, at most k engines move, and it is all repeatable."""

from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.control.commands import AnyCommand, Decided, MoveRole
from narwhal.control.events import Role
from narwhal.control.queue import FairQueue
from tests.control.fleets import HandFleet

ROLES: tuple[Role, Role] = ("prefill", "decode")

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.floats(0, 12), st.floats(0, 2)),
        st.tuples(st.just("streams"), st.integers(0, 11), st.integers(0, 150)),
        st.tuples(st.just("queue"), st.integers(1, 30), st.floats(0.01, 3)),
        st.tuples(st.just("serve"), st.just(0), st.just(0)),
        st.tuples(st.just("state"), st.integers(0, 11), st.sampled_from(["ejected", "draining", "suspected"])),
        st.tuples(st.just("leap"), st.floats(-100, 100), st.just(0)),
        st.tuples(st.just("hold"), st.booleans(), st.just(0)),
        st.tuples(st.just("ask"), st.integers(0, 11), st.sampled_from(ROLES)),
        st.tuples(st.just("timeout"), st.just(0), st.just(0)),
        st.tuples(st.just("urgent"), st.just(0), st.just(0)),
    ),
    max_size=40,
)
FLEETS = st.fixed_dictionaries(
    {
        "roles": st.text("pd", min_size=2, max_size=12),
        "policy": st.sampled_from(["reactive", "projection"]),
        "admission": st.sampled_from(["open", "predictive"]),
        "min_prefill": st.integers(1, 2),
        "min_decode": st.integers(1, 2),
        "thresholds": st.fixed_dictionaries(
            {
                "cooldown_s": st.sampled_from([0.0, 3.0]),
                "dwell_s": st.sampled_from([0.0, 5.0]),
                "flip_resident_guard": st.sampled_from([0, 20]),
            }
        ),
    }
)
PINS = st.dictionaries(st.integers(0, 11), st.sampled_from(ROLES), max_size=3)


class Story:
    """Plays steps on a fleet and checks each command as it comes."""

    def __init__(self, fleet: HandFleet, pins: dict[int, Role]) -> None:
        self.fleet = fleet
        self.numbers = 0
        self.log: list[AnyCommand] = []
        names = list(fleet.pool.engines)
        for index, role in pins.items():
            engine = fleet[names[index % len(names)]]
            engine.pin, engine.role = role, role

    def play(self, steps: list[tuple[str, object, object]]) -> None:
        for what, a, b in steps:
            self.step(what, a, b)
            self.check(self.fleet.roles.tick(self.fleet.t))
            self.fleet.t += 1.0

    def step(self, what: str, a: object, b: object) -> None:
        fleet = self.fleet
        engines = list(fleet.pool.engines.values())
        engine = engines[a % len(engines)] if isinstance(a, int) else engines[0]
        if what == "offer":
            fleet.offer(1, a, b)  # type: ignore[arg-type]
        elif what == "streams":
            engine.streams = b  # type: ignore[assignment]
        elif what == "queue":
            for _ in range(a):  # type: ignore[call-overload]
                self.numbers += 1
                fleet.queue(self.numbers, b, fleet.t)  # type: ignore[arg-type]
        elif what == "serve":
            fleet.pool.requests.clear()
            fleet.pool.queue = FairQueue()
        elif what == "state":
            setattr(engine, str(b), not getattr(engine, str(b)))
        elif what == "leap":
            fleet.t += a  # type: ignore[operator]
        elif what == "hold":
            self.check(fleet.roles.set_hold(fleet.t, bool(a), "test"))
        elif what == "ask":
            self.check(fleet.roles.request_move(fleet.t, engine.id, b))  # type: ignore[arg-type]
        elif what == "timeout":
            fleet.demand.first_token_timeout(fleet.t)
        else:
            self.check(fleet.roles.urgent(fleet.t))

    def check(self, commands: list[AnyCommand]) -> None:
        self.log += commands
        pool, controller = self.fleet.pool, self.fleet.settings.controller
        moves = [command for command in commands if isinstance(command, MoveRole)]
        decisions = [command.decision for command in commands if isinstance(command, Decided)]
        for move in moves:
            engine = pool.engines[move.engine]
            assert engine.pin is None
            assert engine.live
            assert not engine.suspected
            assert not pool.hold
        for decision in decisions:
            if decision.outcome != "moved":
                continue
            failed = {guard.engine for guard in decision.guards if not guard.passed}
            assert not failed & {move.engine for move in decision.moves}
            if decision.trigger != "floor":
                assert "" not in failed
            free = sum(engine.pin is None and engine.live for engine in pool.engines.values())
            assert len(decision.moves) <= max(2, free // 4)
        if moves and decisions[0].trigger != "floor":
            prefill, decode = pool.split()
            assert prefill >= controller.min_prefill or moves[0].role == "prefill"
            assert decode >= controller.min_decode or moves[0].role == "decode"
        self.fleet.do(commands)


def story(fleet: dict[str, object], pins: dict[int, Role], steps: list[tuple[str, object, object]]) -> Story:
    told = Story(HandFleet(**fleet), pins)  # type: ignore[arg-type]
    told.play(steps)
    return told


@given(FLEETS, PINS, STEPS)
@settings(max_examples=150, deadline=None)
def test_no_story_breaks_a_guard_and_the_same_story_ends_the_same(
    fleet: dict[str, object], pins: dict[int, Role], steps: list[tuple[str, object, object]]
) -> None:
    assert story(fleet, pins, steps).log == story(fleet, pins, steps).log


@given(st.text("pd", min_size=2, max_size=12), st.sampled_from(["reactive", "projection"]), st.integers(1, 200))
@settings(max_examples=40, deadline=None)
def test_an_idle_fleet_does_not_move(roles: str, policy: str, seconds: int) -> None:
    fleet = HandFleet(roles, policy, min_prefill=0, min_decode=0)
    fleet.idle(seconds)
    assert not fleet.moved


@given(FLEETS, st.lists(st.integers(0, 11), max_size=8))
@settings(max_examples=60, deadline=None)
def test_floors_are_reached_within_one_pass_for_each_missing_engine(fleet: dict[str, object], lost: list[int]) -> None:
    thrown = HandFleet(**fleet)  # type: ignore[arg-type]
    engines = list(thrown.pool.engines.values())
    for index in lost:
        engines[index % len(engines)].ejected = True
    thrown.idle(5)
    prefill, decode = thrown.pool.split()
    controller = thrown.settings.controller
    if prefill + decode >= controller.min_prefill + controller.min_decode:
        assert prefill >= controller.min_prefill
        assert decode >= controller.min_decode
