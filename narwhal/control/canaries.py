"""The background canary: which pair is next, and what is condemned when answers are wrong.

A canary's answer over a handoff is compared with what its consumer computes itself. Two failures of three condemn:
one pair alone: that pair; all of a producer's pairs: the producer; all of a consumer's: the consumer; a consumer
whose own answer is unlike that of others of its contract: that engine.
"""

from collections import Counter

from narwhal.control.commands import AnyCommand, TryPair
from narwhal.control.events import CanaryArmed, PairTried
from narwhal.control.link import REMEMBERED
from narwhal.control.links import Links, in_use
from narwhal.control.standing import eject
from narwhal.control.state import Pool, Settings
from narwhal.control.trials import Trials, full

CONDEMN = 2
"""Failures of the last three."""
OTHERS_EACH = 4
"""Each so manieth canary goes to a pair that is not in use: roles move."""


class Canaries:
    """Plans canaries within their share of prefill time, and judges what comes back."""

    def __init__(self, settings: Settings, pool: Pool, links: Links, trials: Trials) -> None:
        self.settings = settings
        self.pool = pool
        self.links = links
        self.trials = trials
        self.prompt_tokens = 0
        """Length of the prompt; 0: unarmed."""
        self.next_t = 0.0
        self.running = False
        """One canary at a time."""
        self.urgent: list[tuple[str, str]] = []
        """Pairs to be tried before all others: they tell an edge from an engine."""
        self.turn = 0
        self.references: dict[str, str] = {}
        """What each engine answered by its own prefill, as a digest."""
        self.odd: dict[str, int] = {}
        """How often in a row an engine's own answer was unlike its cohort's."""

    def armed(self, event: CanaryArmed) -> list[AnyCommand]:
        """A prompt was found, or lost: nothing that was answered to another one counts."""
        self.prompt_tokens = event.prompt_tokens
        self.references.clear()
        self.odd.clear()
        return []

    def due(self, t: float) -> list[AnyCommand]:
        """The next canary, when its share of prefill time has passed since the last one."""
        if not self.prompt_tokens or self.running or t < self.next_t or self.settings.recovery.canary.share <= 0:
            return []
        pair = self._next()
        if pair is None:
            return []
        self.running = True
        return [self._start(t, *pair)]

    def _start(self, t: float, producer: str, consumer: str) -> TryPair:
        engines = self.pool.engines
        cost_s = sum(engines[name].curves.prefill_s(self.prompt_tokens) for name in (producer, consumer))
        prefill = max(sum(engine.live and engine.role == "prefill" for engine in engines.values()), 1)
        self.next_t = t + cost_s / (self.settings.recovery.canary.share * prefill)
        self.links.link(producer, consumer).tried_t = t
        return self.trials.ask(t, producer, consumer, "canary")

    def _next(self) -> tuple[str, str] | None:
        """What is urgent; else the pair in use that was tried longest ago, and each fourth time one of the others."""
        engines, severed = self.pool.engines, self.pool.severed
        fit = {name for name, engine in engines.items() if engine.open and not full(engine)}
        pairs = [pair for pair in self.links.pairs() if fit.issuperset(pair)]
        pairs = [pair for pair in pairs if pair[1] not in severed.get(pair[0], ())]
        while self.urgent:
            pair = self.urgent.pop(0)
            if pair in pairs:
                return pair
        used = [pair for pair in pairs if in_use(engines[pair[0]], engines[pair[1]])]
        others = [pair for pair in pairs if pair not in used]
        self.turn = (self.turn + 1) % OTHERS_EACH
        return min((others if self.turn == 0 else used) or used or others, key=self._tried_t, default=None)

    def _tried_t(self, pair: tuple[str, str]) -> float:
        link = self.pool.engines[pair[1]].links.get(pair[0])
        return link.tried_t if link is not None else float("-inf")

    def forget(self, engine: str) -> None:
        """An engine is another process now, or has left."""
        self.references.pop(engine, None)
        self.odd.pop(engine, None)

    def ended(self, event: PairTried, *, retry: bool) -> list[AnyCommand]:
        """A canary ended: what it condemns. `retry`: it tried a pair that is out."""
        if not retry:
            self.running = False
        engines = self.pool.engines
        if event.producer not in engines or event.consumer not in engines:
            return []
        link = self.links.link(event.producer, event.consumer)
        if link.out:
            return self.links.back(event) if retry else []
        if event.outcome not in ("right", "wrong"):
            return []
        odd = self._odd(event) if event.reference else None
        if odd is not None:
            return odd
        link.canaries = [*link.canaries, event.outcome][-REMEMBERED:]
        if event.outcome == "right":
            return []
        if link.canaries.count("wrong") < CONDEMN:
            self.urgent.insert(0, (event.producer, event.consumer))
            self.next_t = event.t
            return []
        return self._condemn(event.t, event.producer, event.consumer)

    def _odd(self, event: PairTried) -> list[AnyCommand] | None:
        """Whether the consumer's own answer is unlike its cohort's; its handoff then says nothing about the pair."""
        name, engines = event.consumer, self.pool.engines
        peers = {other for other, engine in engines.items() if engine.fingerprint == engines[name].fingerprint} - {name}
        others = Counter(said for engine, said in self.references.items() if engine in peers)
        self.references[name] = event.reference
        usual = others.most_common(1)
        if not usual or usual[0][1] < 2 or usual[0][0] == event.reference:
            self.odd.pop(name, None)
            return None
        self.odd[name] = self.odd.get(name, 0) + 1
        self.urgent.insert(0, (event.producer, name))
        self.next_t = event.t
        if self.odd[name] < CONDEMN:
            return []
        self.odd.pop(name)
        self.references.pop(name)
        reason = f"its own answer to the canary is unlike that of {usual[0][1]} others"
        return eject(self.pool, self.settings, self.pool.engines[name], event.t, reason, soft=True)

    def _condemn(self, t: float, producer: str, consumer: str) -> list[AnyCommand]:
        """An edge is out; where it is the last of an engine's that was not, the engine is."""
        commands = self.links.sever(t, producer, consumer, f"wrong KV: {CONDEMN} of the last {REMEMBERED} canaries")
        for name, side in ((producer, 0), (consumer, 1)):
            pairs = [pair for pair in self.links.pairs() if pair[side] == name]
            good = [pair for pair in pairs if pair[1] not in self.pool.severed.get(pair[0], ())]
            if len(pairs) > 1 and not good:
                word = ("producer", "consumer")[side]
                reason = f"wrong KV on every pair of which it is the {word}"
                commands += eject(self.pool, self.settings, self.pool.engines[name], t, reason, soft=True)
            self.urgent += [pair for pair in good if pair not in self.urgent]
        self.next_t = t
        return commands
