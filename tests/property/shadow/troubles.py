"""What befalls a shadow fleet: engines and links fail, an operator orders, routers lose the lease or die."""

from typing import TYPE_CHECKING

import msgspec

from narwhal.control import Control
from narwhal.control import commands as c
from narwhal.control import events as e
from narwhal.control.snapshot import Cut
from narwhal.control.succession import RoleMap, follow_map, presume_handoffs, role_map, succeed
from narwhal.router.standby.line import pieces, state_of
from tests.property.shadow.promises import Promises

if TYPE_CHECKING:
    from tests.property.shadow.engines import ShadowEngine
    from tests.property.shadow.story import Story

CUT_S = 1.0
"""Time between two lines of the follow stream."""
LONGEST_S = 12.0
"""Most seconds that a trouble lasts."""
ROLES: tuple[e.Role, e.Role] = ("prefill", "decode")


class Troubles:
    """Everything that a story did not ask for."""

    def __init__(self, story: "Story") -> None:
        self.story = story
        self.random = story.random
        self.over = False
        """Whether the story comes to its end: nothing new happens."""
        self.takeovers = 0
        self.facts: dict[str, tuple[e.Role, e.Role | None]] = {}
        """The fleet file: the first role and the pin of each engine."""
        self.stored: bytes | None = None
        """The role map in the lease's store."""
        self.cut: tuple[float, Cut] | None = None
        """What was told to a follower last, and when, on the clock of the router that told."""
        self.proven = True
        self._names = 0

    def begin(self) -> None:
        """From now on."""
        story, mix = self.story, self.story.mix
        self.facts = {name: (engine.role, engine.pin) for name, engine in story.led.pool.engines.items()}
        self._names = len(self.facts)
        story.each(CUT_S, self._tell)
        story.poisson(mix.troubles, self._trouble)
        story.poisson(mix.orders, self._order)
        story.poisson(mix.takeovers, self._lease)

    def end(self) -> None:
        """All is mended, and stays so."""
        story = self.story
        self.over = True
        if story.control is None:
            self._lead()
        story.fleet.mend()
        if not self.proven:
            self._prove(True)
        story.feed(e.HoldSet(story.now, False))
        story.feed(e.DrainSet(story.now, tuple(story.led.pool.engines), False))

    # Engines and links

    def _trouble(self) -> None:
        fleet, draw = self.story.fleet, self.random
        engine = draw.choice(list(fleet.engines.values()))
        kind = draw.choice(("kill", "kill", "restart", "hang", "hang", "fail", "slow", "cut", "wrong", "late"))
        lasts_s = draw.uniform(0.1, LONGEST_S)
        if kind in ("cut", "wrong"):
            other = draw.choice(list(fleet.engines))
            pairs = fleet.cut if kind == "cut" else fleet.wrong
            pairs.add((engine.name, other))
            self.story.at(self.story.t + 3 * lasts_s, lambda: pairs.discard((engine.name, other)))
        elif kind == "late":
            engine.late += 1
        elif engine.state == "up":
            self._fell(engine, kind, lasts_s)

    def _fell(self, engine: "ShadowEngine", kind: str, lasts_s: float) -> None:
        story, life = self.story, engine.life

        def well() -> None:
            if engine.life != life:
                return
            if engine.state == "dead":
                engine.restart(self.random.choice(("c1", "c1", "c2")))
            engine.state, engine.fails, engine.slow = "up", False, 1.0

        if kind in ("kill", "restart"):
            engine.state = "dead"
            story.broke(engine.name)
            if kind == "restart":
                engine.restart(self.random.choice(("c1", "c1", "c2")))
        elif kind == "hang":
            engine.state = "hung"
        elif kind == "fail":
            engine.fails = True
        else:
            engine.slow = self.random.choice((2.0, 5.0))
        story.at(story.t + lasts_s, well)

    # The operator

    def _order(self) -> None:
        """Routers refuse orders while the lease is unproven; what control guards itself is asked for all the same."""
        story, draw = self.story, self.random
        if story.control is None:
            return
        names, now = list(story.control.pool.engines), story.now
        name, other, role = draw.choice(names), draw.choice(names), draw.choice(ROLES)
        kind = draw.choice(("move", "swap", "hold", "drain", "drain", "undrain", "readmit", "pin", "reload"))
        if kind == "move":
            story.feed(e.MoveRequested(now, name, role))
        elif kind == "swap":
            story.feed(e.SwapRequested(now, name, other))
        elif kind == "hold":
            story.feed(e.HoldSet(now, draw.random() < 0.5, "a test"))
        elif kind in ("drain", "undrain"):
            until_t = draw.choice((-1.0, now, now + draw.uniform(0.1, LONGEST_S)))
            story.feed(e.DrainSet(now, (name, other), kind == "drain", until_t, draw.random() < 0.5))
        elif kind == "readmit":
            story.feed(e.ReadmitRequested(now, (name, other)))
        elif kind == "pin":
            story.feed(e.PinSet(now, name, draw.choice((None, role))))
        elif self.proven:
            self._reload(name)

    def _reload(self, name: str) -> None:
        """The fleet file says other things."""
        story, draw = self.story, self.random
        kind = draw.choice(("pin", "pin", "retire", "join", "serving"))
        engine = story.led.pool.engines[name]
        if kind == "pin" and name in self.facts:
            pin = draw.choice((None, None, *ROLES))
            self.facts[name] = (self.facts[name][0], pin)
            story.feed(e.EngineRevised(story.now, name, story.curves, story.measured, pin))
        elif kind == "retire" and len(self.facts) > 2 and engine.leaves_t is None:
            self.facts.pop(name, None)
            story.feed(e.EngineRetired(story.now, name, story.now + draw.uniform(0.5, LONGEST_S)))
        elif kind == "join" and len(self.facts) < 12:
            fresh, role, pin = f"e{self._names}", draw.choice(ROLES), draw.choice((None, None, *ROLES))
            self._names += 1
            self.facts[fresh] = (role, pin)
            story.join(fresh, role, pin)
        elif kind == "serving":
            serving = story.control_settings.serving.model_copy(
                update={
                    "max_retries": draw.choice((0, 2)),
                    "prefill_in_flight": draw.choice((1, 2, 4)),
                    "admission": draw.choice(("open", "predictive")),
                }
            )
            changed = story.control_settings.copy()
            changed.serving = serving
            story.settings = changed
            story.feed(e.SettingsChanged(story.now, changed.document()))

    def left(self, name: str) -> None:
        """Control let an engine go."""
        self.story.fleet.engines.pop(name, None)
        self.story.unread.pop(name, None)

    # Moves and the role map

    def move(self, command: c.MoveRole) -> None:
        """A move is in the map before it is done; without the lease it cannot be written."""
        story, draw = self.story, self.random
        if not self.proven or draw.random() < 0.05:
            failed = (command.engine, command.role, command.epoch, "the role map could not be written")
            story.after(draw.random() * 0.05, lambda: story.feed(e.MoveFailed(story.now, *failed)))
            return
        story.moves[command.engine] = command.role
        self.write_map()

        def moved() -> None:
            story.moves.pop(command.engine, None)
            story.feed(e.RoleMoved(story.now, command.engine, command.role, command.epoch))

        story.after(draw.random() * 0.05, moved)

    def write_map(self) -> None:
        """Have the store know what control knows, where the lease lets it."""
        if self.story.control is not None and self.proven:
            self.stored = msgspec.json.encode(role_map(self.story.control.pool, self.story.moves))

    # Routers

    def _tell(self) -> None:
        story = self.story
        if story.control is not None:
            self.cut = story.now, Cut(story.control, residents=False)

    def _lease(self) -> None:
        """The lease is lost for a while; or another router has it from now on, with or without a pause."""
        story, draw = self.story, self.random
        if story.control is None or not self.proven:
            return
        kind = draw.choice(("lost", "lost", "died", "died", "handover"))
        if kind == "lost":
            self._prove(False)
            back = draw.random() < 0.6
            story.after(draw.uniform(0.5, LONGEST_S), lambda: self._prove(True) if back else self._take_over(0.0))
        else:
            if kind == "handover":
                self._tell()
            self._take_over(0.0 if kind == "handover" else draw.choice((0.1, 1.0, 6.0)))

    def _prove(self, proven: bool) -> None:
        self.proven = proven
        self.story.feed(e.LeaseChanged(self.story.now, proven))

    def _take_over(self, pause_s: float) -> None:
        story = self.story
        story.forsake()
        story.control = None
        story.reign += 1
        story.moves.clear()
        reign = story.reign
        story.at(story.t + pause_s, lambda: self._lead() if story.reign == reign and story.control is None else None)

    def _lead(self) -> None:
        """Another router: another clock, what it was told, else what it saw itself, and the role map."""
        story, draw = self.story, self.random
        self.takeovers += 1
        heard_s, story.clock_s = story.clock_s, draw.choice((0.0, -1e5, 1e4))
        if self.cut is not None and draw.random() < 0.8:
            _, cut = self.cut
            told = {name: msgspec.Raw(piece) for name, piece in pieces(cut, lambda: None).items()}
            control = succeed(story.settings, state_of(told), story.clock_s - heard_s, t=story.now)
        else:
            control = self._own()
            presume_handoffs(control.pool, story.now)
        found = msgspec.json.decode(self.stored, type=RoleMap) if self.stored is not None else None
        if found is not None:
            follow_map(control, found)
        story.control, self.cut = control, None
        story.promises = Promises()
        story.promises.follow(found, control)
        self._prove(True)
        self._rejoin(control)

    def _own(self) -> Control:
        """What a router knows that nobody told anything, and that looked at the engines itself."""
        story, now = self.story, self.story.now
        control = Control(story.settings)
        control.handle(e.LeaseChanged(now, False))
        for name, (role, pin) in self.facts.items():
            control.handle(e.EngineJoined(now, name, role, story.curves, story.measured, pin))
            engine = story.fleet.engines[name]
            if engine.state == "up" and self.random.random() < 0.8:
                control.handle(e.EngineUp(now, name, engine.generation))
        return control

    def _rejoin(self, control: Control) -> None:
        """Tell it what the fleet file says."""
        story = self.story
        for name in [name for name in control.pool.engines if name not in self.facts]:
            story.feed(e.EngineLeft(story.now, name))
        for name, (role, pin) in self.facts.items():
            if name in control.pool.engines:
                story.feed(e.EngineRevised(story.now, name, story.curves, story.measured, pin))
            else:
                story.introduce(name, role, pin)
