"""One router's life in a shadow fleet: events in the order of time, commands carried out as the shell does."""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from narwhal.control import Control, Curves, Settings
from narwhal.control import commands as c
from narwhal.control import events as e
from tests.control.driving import check_sums
from tests.property.shadow.clients import Asked, Handoff
from tests.property.shadow.engines import LOOK_S, ShadowEngine, ShadowFleet
from tests.property.shadow.promises import Promises
from tests.property.shadow.troubles import Troubles

TICK_S = 0.25
FLUSH_S = 0.2
"""Time between two batches of tokens."""
SUMS_EACH = 100
"""Events between two recounts of all sums."""
LEGS = {c.StartPrefill: "prefill", c.StartDecode: "decode", c.StartWhole: "whole"}


@dataclass(frozen=True, slots=True)
class Mix:
    """How often things happen, each second."""

    arrivals: float = 8.0
    longest: int = 800
    """Longest prompt, in tokens."""
    aborts: float = 0.05
    """Share of clients that leave."""
    mishaps: float = 0.01
    """Share of legs that fail for no reason of their engine's."""
    troubles: float = 0.2
    """Engines and links that fail, or are well again."""
    orders: float = 0.1
    """Of the operator: drains, moves, swaps, holds, pins, reloads."""
    takeovers: float = 0.02
    """Leases that are lost, and routers that die or hand over."""


class Story:
    """Plays what happens. `roles`: a letter for each engine. `kinds` tells engines apart: curves, contract, card."""

    def __init__(self, seed: int, roles: str, settings: Settings, mix: Mix, *, curves: Curves, measured: bool) -> None:
        self.random = random.Random(seed)
        self.mix, self.curves, self.measured = mix, curves, measured
        self.fleet = ShadowFleet(self.random)
        self.settings = settings
        self.control: Control | None = Control(settings)
        """None: no router leads."""
        self.promises = Promises()
        self.t = 0.0
        """The world's clock."""
        self.clock_s = 0.0
        """What the leading router's clock shows beyond it."""
        self.reign = 1
        """Which router leads: what was asked by another is answered to nobody."""
        self.handled = 0
        self.asked: dict[int, Asked] = {}
        """Requests that are open."""
        self.ended: dict[str, int] = {}
        """How requests ended."""
        self.seen: dict[str, int] = {}
        """Commands by kind, and changes of engines."""
        self.unread: dict[str, list[tuple[int, float]]] = {}
        """Handoffs of each engine that nobody came for: its life, and when they were made, on the world's clock."""
        self.moves: dict[str, e.Role] = {}
        """Moves that the role map has and control has not heard of."""
        self._numbers = count()
        self._order = count()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self.troubles = Troubles(self)
        for number, letter in enumerate(roles):
            self.join(f"e{number}", "prefill" if letter == "p" else "decode", None)
        self._begin()

    def _begin(self) -> None:
        self.each(TICK_S, self._tick)
        self.each(FLUSH_S, self._flush)
        self.poisson(self.mix.arrivals, self._arrive)
        self.troubles.begin()

    # Time

    def at(self, t: float, act: Callable[[], None]) -> None:
        """Do something at a time of the world."""
        heapq.heappush(self._heap, (t, next(self._order), act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something later, if the same router leads then."""
        reign = self.reign
        self.at(self.t + seconds, lambda: act() if self.reign == reign and self.control is not None else None)

    def each(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something again and again."""

        def again() -> None:
            self.at(self.t + seconds, again)
            act()

        self.at(self.t + seconds, again)

    def poisson(self, per_s: float, act: Callable[[], None]) -> None:
        """Do something so often, at random times, until the story comes to its end."""

        def again() -> None:
            if not self.troubles.over:
                self.at(self.t + self.random.expovariate(per_s), again)
                act()

        if per_s:
            self.at(self.t + self.random.expovariate(per_s), again)

    def run(self, events: int) -> None:
        """Let so many events happen, all checked."""
        while self.handled < events:
            self._next()
        self.check()

    def end(self, within_s: float) -> None:
        """Nothing new happens, all is mended: every request must end, every reservation be released."""
        self.troubles.end()
        until_t = self.t + within_s
        while self.t < until_t:
            self._next()
        self.check()
        assert not self.asked, f"requests that nobody ends: {[(a.number, a.command) for a in self.asked.values()]}"
        self.promises.check_end(self.led, self.now)

    def _next(self) -> None:
        self.t, _, act = heapq.heappop(self._heap)
        act()

    # Control

    @property
    def now(self) -> float:
        """The leading router's clock."""
        return self.t + self.clock_s

    def feed(self, event: e.AnyEvent) -> None:
        """Have control handle an event, check what it commands, and carry it out."""
        control = self.control
        if control is None:
            return
        self.handled += 1
        self.promises.hear(event)
        commands = control.handle(event)
        self.promises.check(control, commands)
        for command in commands:
            self._carry_out(command)
        if isinstance(event, e.Tick):
            self.promises.check_floors(control, self.now)
        if self.handled % SUMS_EACH == 0:
            self.check()

    def check(self) -> None:
        """All sums are exact, and control knows the requests that are open."""
        if self.control is not None:
            check_sums(self.control)
            assert set(self.control.pool.requests) == set(self.asked)

    def _tick(self) -> None:
        self.feed(e.Tick(self.now))
        self.troubles.write_map()

    def join(self, name: str, role: e.Role, pin: e.Role | None) -> None:
        """An engine stands in the fleet file from now on."""
        if name not in self.fleet.engines:
            self.fleet.engines[name] = ShadowEngine(name)
            self.at(self.t + self.random.random(), lambda: self._look_again(name))
        self.introduce(name, role, pin)

    def introduce(self, name: str, role: e.Role, pin: e.Role | None) -> None:
        """Control hears of an engine."""
        self.feed(e.EngineJoined(self.now, name, role, self.curves, self.measured, pin))

    # Commands

    def _carry_out(self, command: c.AnyCommand) -> None:
        kind = type(command).__name__
        self.seen[kind] = self.seen.get(kind, 0) + 1
        if isinstance(command, c.StartPrefill | c.StartDecode | c.StartWhole | c.Wait | c.Resume):
            self._replace(command)
        elif isinstance(command, c.Refuse | c.Abort):
            self._over(command.request, kind)
        elif isinstance(command, c.MoveRole):
            self.troubles.move(command)
        elif isinstance(command, c.ProbeEngine):
            self.after(0.0, lambda: self._look(command.engine))
        elif isinstance(command, c.TryPair):
            self._try(command)
        elif isinstance(command, c.CheckEngine):
            self.after(LOOK_S, lambda: self._checked(command.engine))
        elif isinstance(command, c.EngineChanged):
            self.seen[command.change] = self.seen.get(command.change, 0) + 1
            if command.change == "left":
                self.troubles.left(command.engine)
            elif command.change == "drained":
                self._drained(command.engine)

    def _drained(self, name: str) -> None:
        """It may be stopped now: that harms nobody."""
        engine, lease_s = self.fleet.engines[name], self.control_settings.kv_lease_s
        assert not [a for a in self.asked.values() if a.engine == name and not isinstance(a.command, c.Resume)]
        assert not [a for a in self.asked.values() if a.reads_from(name) and self.t - a.since_t < lease_s]
        left = [made_t for life, made_t in self.unread.get(name, ()) if life == engine.life]
        if engine.state == "up" and not self.led.pool.engines[name].ejected:
            assert not [made_t for made_t in left if self.t - made_t < lease_s], "blocks of a handoff are kept yet"

    def _given_up(self, asked: Asked) -> None:
        """Nobody will read the handoff of a request, if it has one."""
        handoff, asked.handoff = asked.handoff, None
        if handoff is not None and not asked.visible:
            self.unread.setdefault(handoff.producer, []).append((handoff.life, handoff.made_t - self.clock_s))

    def _over(self, number: int, how: str) -> None:
        assert number in self.asked, f"request {number} ends twice"
        asked = self.asked.pop(number)
        asked.ended = how
        self._given_up(asked)
        self.ended[how] = self.ended.get(how, 0) + 1

    def _replace(self, command: Any) -> None:
        """What ran for the request is aborted."""
        assert command.request in self.asked, f"{command} for a request that is over"
        asked = self.asked[command.request]
        asked.turn += 1
        asked.command, asked.flowing, asked.since_t = command, False, self.t
        if isinstance(command, c.StartPrefill | c.StartDecode | c.StartWhole):
            assert command.engine not in asked.failed, f"{command} goes back to an engine that failed the request"
        if not (isinstance(command, c.StartDecode) or (isinstance(command, c.Wait) and command.what == "seat")):
            self._given_up(asked)
        if isinstance(command, c.StartPrefill):
            self._leg_1(asked, command)
        elif isinstance(command, c.StartDecode):
            self._leg_2(asked, command)
        elif isinstance(command, c.StartWhole):
            self._leg(asked, self.fleet.alone(command.engine), self._prefill_s(), "first_token", command.until)
        elif isinstance(command, c.Resume):
            self._turn(asked, self.random.uniform(0.005, 0.05), lambda: self._resume(asked, command))
            self._deadline(asked, "resume", command.until)
        else:
            self._deadline(asked, command.what, command.until)

    def _turn(self, asked: Asked, seconds: float, act: Callable[[], None]) -> None:
        """Do something later unless another command came for the request, or it is over."""
        turn = asked.turn
        self.after(seconds, lambda: act() if asked.turn == turn and not asked.ended else None)

    def _deadline(self, asked: Asked, what: e.Deadline, until: float) -> None:
        def passed() -> None:
            if what == "first_token" and asked.visible:
                return
            if what in ("prefill", "first_token"):
                asked.failed.add(asked.engine)
            self.feed(e.DeadlinePassed(self.now, asked.number, what))

        if until != float("inf"):
            self._turn(asked, max(until - self.now, 0.0), passed)

    # Legs

    def _prefill_s(self) -> float:
        return self.random.expovariate(1 / 0.1)

    def _leg_1(self, asked: Asked, command: c.StartPrefill) -> None:
        self._deadline(asked, "prefill", command.until)
        engine = self.fleet.engines[command.engine]
        life = engine.life

        def answered() -> None:
            if engine.state == "hung":
                self._turn(asked, 0.5, answered)  # it may go on
            elif engine.state == "dead" or engine.life != life:
                self._fail(asked, "connection")
            elif engine.fails or self._mishap():
                self._fail(asked, "status", 500)
            else:
                asked.handoff = Handoff(engine.name, life, self.now)
                told = engine.generation if self.random.random() < 0.5 else ""
                self.feed(e.PrefillFinished(self.now, asked.number, self.random.choice((0, 100, 500)), told))

        self._turn(asked, self._prefill_s(), answered)

    def _leg_2(self, asked: Asked, command: c.StartDecode) -> None:
        handoff = asked.handoff
        assert handoff is not None, "leg 2 without a handoff"
        assert not handoff.used, "a handoff is used twice"
        assert handoff.producer == command.producer != command.engine
        assert self.now - handoff.made_t <= self.control_settings.kv_lease_s / 2, "a handoff is used after its bound"
        handoff.used = True
        came = self.fleet.handed(handoff.producer, handoff.life, command.engine)
        self._leg(asked, came, self.random.uniform(0.005, 0.05), "first_token", command.until)

    def _leg(self, asked: Asked, came: str, seconds: float, what: e.Deadline, until: float) -> None:
        """The first token of a stream, or what comes instead."""
        self._deadline(asked, what, until)
        engine = self.fleet.engines[asked.engine]
        life = engine.life

        def answered() -> None:
            if engine.state == "dead" or engine.life != life:
                self._fail(asked, "connection")
            elif engine.state == "hung":
                self._turn(asked, 0.5, answered)
            elif came in ("leg_1", "leg_2") or self._mishap():
                self._fail(asked, self.random.choice(("status", "status", "stream", "handoff", "overload")), 500)
            elif self.random.random() < self.mix.mishaps / 4:
                self.asked[asked.number].failed.add(engine.name)
                self._over(asked.number, "client's fault")
                leg = LEGS[type(asked.command)]
                self.feed(e.LegFailed(self.now, asked.number, leg, engine.name, "client", status=400))  # type: ignore[arg-type]
            else:
                asked.visible = asked.flowing = True
                asked.handoff = None
                asked.heard_t = self.t
                asked.produced += 1
                engine.tokens += 1
                self.feed(e.FirstToken(self.now, asked.number))
                self._watch_gap(asked)

        if came != "hangs":
            self._turn(asked, seconds, answered)

    def _mishap(self) -> bool:
        return not self.troubles.over and self.random.random() < self.mix.mishaps

    def _watch_gap(self, asked: Asked) -> None:
        gap_s = self.control_settings.serving.deadlines.gap_s

        def look() -> None:
            if not asked.visible or not asked.engine:
                return
            if self.t - asked.heard_t < gap_s - 1e-9:
                self._turn(asked, asked.heard_t + gap_s - self.t, look)
                return
            asked.failed.add(asked.engine)
            self.feed(e.DeadlinePassed(self.now, asked.number, "gap"))

        if gap_s:
            self._turn(asked, gap_s, look)

    def _fail(self, asked: Asked, cause: e.FailureCause, status: int = 0) -> None:
        if cause == "overload":
            status = 503
        asked.failed.add(asked.engine)
        leg = LEGS[type(asked.command)]
        visible, asked.flowing = asked.visible and asked.flowing, False
        self.feed(e.LegFailed(self.now, asked.number, leg, asked.engine, cause, visible, status))  # type: ignore[arg-type]

    def _flush(self) -> None:
        """Tokens of all streams; those of dead engines break, those that are complete end."""
        numbers, tokens = [], []
        for asked in [a for a in self.asked.values() if a.flowing]:
            engine = self.fleet.engines[asked.engine]
            if engine.state == "up" and asked.produced < asked.tokens:
                more = min(asked.tokens - asked.produced, self.random.randint(1, 12))
                asked.produced += more
                engine.tokens += more
                asked.heard_t = self.t
                numbers.append(asked.number)
                tokens.append(more)
        if numbers:
            self.feed(e.TokensObserved(self.now, tuple(numbers), tuple(tokens)))
        for asked in [a for a in self.asked.values() if a.flowing and a.produced >= a.tokens]:
            if self.fleet.engines[asked.engine].state == "up" and asked.number in self.asked and asked.flowing:
                self._over(asked.number, "served")
                self.feed(e.RequestFinished(self.now, asked.number, asked.produced))

    def broke(self, engine: str) -> None:
        """The connections to an engine break: those of streams at once, others when they would have answered."""
        for asked in [a for a in self.asked.values() if a.flowing and a.engine == engine]:
            self._turn(asked, self.random.random() * 0.01, lambda asked=asked: self._fail(asked, "stream"))  # type: ignore[misc]

    def _resume(self, asked: Asked, command: c.Resume) -> None:
        engine = self.fleet.engines.get(command.engine)
        if engine is None or engine.state == "hung":
            return
        if engine.state == "dead" or engine.fails:
            asked.failed.add(command.engine)
            self.feed(e.ResumeFailed(self.now, asked.number, command.engine, "it does not answer"))
        elif self._mishap():
            self.feed(e.ResumeFailed(self.now, asked.number, "", "its text ends inside a character"))
        else:
            asked.visible = False
            left = max(asked.tokens - asked.produced, 1)
            self.feed(e.ResumeReady(self.now, asked.number, 100 + asked.produced, left))

    # Clients

    @property
    def led(self) -> Control:
        """The control that leads."""
        assert self.control is not None
        return self.control

    @property
    def control_settings(self) -> Settings:
        """Those in force."""
        return self.led.settings

    def _arrive(self) -> None:
        if self.control is None:
            return
        draw, number = self.random, next(self._numbers)
        asked = self.asked[number] = Asked(number, draw.randint(1, 60))
        whole = draw.random() < 0.05
        tenant = draw.choice(("a", "b", "c")) if self.control_settings.tenants else "default"
        length, priority = draw.randint(1, self.mix.longest), draw.choice((None, None, "batch"))
        resumable = not whole and draw.random() < 0.8
        arrived = e.RequestArrived(self.now, number, length, asked.tokens, whole, tenant, "", -1.0, priority, resumable)
        self.feed(arrived)
        if draw.random() < self.mix.aborts:
            self.after(draw.expovariate(1.0), lambda: self._leave(asked))
        self.after(self.control_settings.serving.deadlines.request_s, lambda: self._too_long(asked))

    def _leave(self, asked: Asked) -> None:
        if not asked.ended:
            self._over(asked.number, "client left")
            self.feed(e.RequestCancelled(self.now, asked.number))

    def _too_long(self, asked: Asked) -> None:
        if not asked.ended:
            self.feed(e.DeadlinePassed(self.now, asked.number, "request"))

    def forsake(self) -> None:
        """The router is gone, and with it the connections of its clients."""
        for number in list(self.asked):
            self._over(number, "router died")

    # Probes

    def _look_again(self, name: str) -> None:
        if name in self.fleet.engines:
            self.at(self.t + self.settings.recovery.probe_interval_s, lambda: self._look_again(name))
            if self.control is not None:
                self._look(name)

    def _look(self, name: str) -> None:
        engine = self.fleet.engines.get(name)
        if engine is None:
            return
        if engine.state == "hung":
            self.after(self.control_settings.recovery.probe_timeout_s, lambda: self._looked(engine, hung=True))
        else:
            self.after(LOOK_S, lambda: self._looked(engine, hung=False))

    def _looked(self, engine: ShadowEngine, *, hung: bool) -> None:
        if engine.name not in self.fleet.engines:
            return
        if engine.state == "dead":
            self.feed(e.EngineDown(self.now, engine.name, "connection", hard=True))
        elif hung:
            self.feed(e.EngineDown(self.now, engine.name, "timeout"))
        elif engine.state == "up":
            self.feed(e.EngineUp(self.now, engine.name, engine.generation))
            mine = [a for a in self.asked.values() if a.engine == engine.name]
            foreign = self.random.randint(0, 2)
            pace = (engine.tokens, 5, 0.012 * engine.slow) if mine else (engine.tokens,)
            kv_tokens = 100 * (len(mine) + foreign)
            self.feed(e.EngineObserved(self.now, engine.name, len(mine) + foreign, 0, kv_tokens, *pace))

    def _try(self, command: c.TryPair) -> None:
        compared = command.purpose == "canary"
        outcome = self.fleet.tried(command.producer, command.consumer, compared=compared)
        seconds = 2 * command.timeout_s if outcome == "hangs" else self.random.uniform(0.01, 0.1)
        said: e.Outcome = "leg_2" if outcome == "hangs" else outcome
        reference = "a" if compared and said in ("right", "wrong") else ""
        tried = (command.number, command.producer, command.consumer, said, "a", reference, 0.01, 1000, "pull")
        self.after(seconds, lambda: self.feed(e.PairTried(self.now, *tried)))

    def _checked(self, name: str) -> None:
        engine = self.fleet.engines.get(name)
        well = engine is not None and engine.state == "up"
        if engine is not None and well:
            self.feed(e.EngineChecked(self.now, name, engine.generation, engine.contract))
        else:
            self.feed(e.EngineChecked(self.now, name, "", "", "it does not answer"))
