"""Whose fault a failed handoff is: both sides get no new work until probes have told producer, consumer and link apart.

The probes of a case: the pair itself once more, the producer to a known-good peer, and that peer to the consumer.
Who succeeds with the peer is innocent; where both do, it is the link between them. Where there is no peer, each
answers a token alone. Nobody is blamed where the probes leave a doubt.
"""

from dataclasses import dataclass, field
from typing import Literal

from narwhal.control.commands import AnyCommand, EngineChanged, ProbeEngine
from narwhal.control.events import Outcome
from narwhal.control.standing import changed, last_of_role
from narwhal.control.state import Engine, Pool
from narwhal.control.trials import Trials

PAUSE_S = 2.0
"""Least time between two cases of one pair: a client that makes requests fail does not keep engines in question."""
MOST_PEERS = 2
"""Peers that a case asks before it is given up."""

Test = Literal["pair", "producer", "consumer"]
Verdict = Literal["nobody", "link", "producer", "consumer", "unknown"]


@dataclass(slots=True)
class Case:
    """One open question."""

    producer: str
    consumer: str
    """The producer too: is this engine well?"""
    cause: str
    held: list[str] = field(default_factory=list)
    """Engines that get no new work for it."""
    peers: list[str] = field(default_factory=list)
    """Peers that were asked, the present one last."""
    waits: dict[int, Test] = field(default_factory=dict)
    """Probes under way."""
    results: dict[Test, Outcome] = field(default_factory=dict)


class Suspicion:
    """The open cases. Methods return commands, or a closed case with its verdict."""

    def __init__(self, pool: Pool, trials: Trials) -> None:
        self.pool = pool
        self.trials = trials
        self.number = 0
        self.cases: dict[int, Case] = {}
        self.closed_t: dict[str, float] = {}
        """When the last case of a pair was closed."""

    def open(self, t: float, producer: str, consumer: str, cause: str) -> list[AnyCommand]:
        """Put a pair in question; the same engine twice: that engine alone. Nothing where it is in question already."""
        sides = [self.pool.engines.get(name) for name in dict.fromkeys((producer, consumer))]
        if any(side is None or side.ejected or not side.admitted for side in sides):
            return []  # who is out explains the failure
        if any((case.producer, case.consumer) == (producer, consumer) for case in self.cases.values()):
            return []
        if t - self.closed_t.get(f"{producer}>{consumer}", float("-inf")) < PAUSE_S:
            return []
        self.number += 1
        case = self.cases[self.number] = Case(producer, consumer, cause)
        commands: list[AnyCommand] = []
        for side in sides:
            assert side is not None
            if not last_of_role(self.pool, side):
                side.questions += 1
                case.held.append(side.id)
                commands.append(changed(side, t, "questioned", _why(case)))
        return [*commands, *(ProbeEngine(side.id) for side in sides if side), *self._ask(t, self.number, case)]

    def _ask(self, t: float, number: int, case: Case) -> list[AnyCommand]:
        """The probes of a case, with the next peer."""
        case.results, case.waits = {}, {}
        producer, consumer = case.producer, case.consumer
        tests: list[tuple[Test, str, str]] = [("producer", producer, producer)]
        if producer != consumer:
            engine = self.pool.engines[consumer]
            peer = self.trials.peer(engine, (producer, *case.peers))
            if peer is not None:
                case.peers.append(peer.id)
            beside = peer.id if peer else ""
            tests = [
                ("pair", producer, consumer),
                ("producer", producer, beside or producer),
                ("consumer", beside or consumer, consumer),
            ]
        commands: list[AnyCommand] = []
        for test, source, target in tests:
            command = self.trials.ask(t, source, target, "blame", str(number))
            case.waits[command.number] = test
            commands.append(command)
        return commands

    def tried(
        self, t: float, owner: str, number: int, outcome: Outcome
    ) -> tuple[list[AnyCommand], Case | None, Verdict]:
        """A probe ended. The case is returned with its verdict once it is closed."""
        case = self.cases.get(int(owner))
        test = case.waits.pop(number, None) if case is not None else None
        if case is None or test is None:
            return [], None, "unknown"
        case.results[test] = outcome
        if case.waits:
            return [], None, "unknown"
        verdict = judge(case)
        gone = any(name not in self.pool.engines for name in (case.producer, case.consumer))
        if verdict == "unknown" and case.peers and len(case.peers) < MOST_PEERS and not gone:
            before = len(case.peers)
            engine = self.pool.engines[case.consumer]
            if self.trials.peer(engine, (case.producer, *case.peers)) is not None:
                commands = self._ask(t, int(owner), case)
                assert len(case.peers) == before + 1
                return commands, None, "unknown"
        return self._close(t, int(owner), case), case, verdict

    def explained(self, t: float, engine: str) -> list[AnyCommand]:
        """An engine is out, or a look at it failed: that explains its cases, and clears the other side of each."""
        commands: list[AnyCommand] = []
        for number, case in list(self.cases.items()):
            if engine in (case.producer, case.consumer):
                commands += self._close(t, number, case)
        return commands

    def _close(self, t: float, number: int, case: Case) -> list[AnyCommand]:
        """The case is over: who was held may have work again, unless it is found guilty now."""
        del self.cases[number]
        self.closed_t[f"{case.producer}>{case.consumer}"] = t
        for trial in case.waits:
            self.trials.ended(trial)
        commands: list[AnyCommand] = []
        for name in case.held:
            engine = self.pool.engines.get(name)
            if engine is not None:
                engine.questions = max(engine.questions - 1, 0)
                if not engine.questions:
                    commands.append(EngineChanged(name, "cleared", _why(case)))
        return commands

    def forget(self, t: float) -> None:
        """Drop what is too old to matter."""
        if self.closed_t:
            self.closed_t = {pair: at for pair, at in self.closed_t.items() if t - at < PAUSE_S}


def judge(case: Case) -> Verdict:
    """Who is to blame, by what the probes of a case came to."""
    pair, produced, consumed = (case.results.get(test, "untold") for test in ("pair", "producer", "consumer"))
    if case.producer == case.consumer:
        return "nobody" if _well(produced) else "unknown" if produced == "untold" else "producer"
    if _well(pair):
        return "nobody"
    if "untold" in (pair, produced, consumed):
        return "unknown"
    if _well(produced):
        # where the peer gave no KV, it was not the consumer that failed
        return "link" if _well(consumed) else "unknown" if case.peers and consumed == "leg_1" else "consumer"
    return "producer" if _well(consumed) or "leg_1" in (pair, produced) else "unknown"


def _well(outcome: str) -> bool:
    """Whether KV came over; whether it is the right one is the canary's question."""
    return outcome in ("right", "wrong", "reference")


def _why(case: Case) -> str:
    if case.producer == case.consumer:
        return f"{case.cause} on {case.consumer}"
    return f"{case.cause} on the handoff {case.producer} > {case.consumer}"


def guilty(pool: Pool, case: Case, verdict: Verdict) -> Engine | None:
    """The engine that a verdict is about."""
    name = {"producer": case.producer, "consumer": case.consumer}.get(verdict, "")
    return pool.engines.get(name)
