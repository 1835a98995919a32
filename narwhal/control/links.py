"""The matrix of directed pairs: what each was seen to do, which are out, and when those are tried again."""

from narwhal.control.commands import AnyCommand, PairChanged, TryPair
from narwhal.control.events import PairTried
from narwhal.control.link import Link
from narwhal.control.state import Engine, Pool, Settings
from narwhal.control.trials import Trials

DOUBT_S = 60.0
"""How long other pairs are preferred to one that failed."""
RETRY = "retry"
"""Owner of the tries of pairs that are out."""
BACK_AFTER = 2
"""Tries in a row that bring a pair back."""


class Links:
    """Keeps the matrix, and with it `pool.severed` and `pool.doubtful`, which placement reads."""

    def __init__(self, settings: Settings, pool: Pool, trials: Trials) -> None:
        self.settings = settings
        self.pool = pool
        self.trials = trials
        self.retry_t = float("-inf")
        """No pair that is out is tried again before this."""
        self.doubts_until_t = float("-inf")

    def link(self, producer: str, consumer: str) -> Link:
        """What is known of a pair of engines that are there."""
        links = self.pool.engines[consumer].links
        found = links.get(producer)
        if found is None:
            found = links[producer] = Link()
        return found

    def pairs(self) -> list[tuple[str, str]]:
        """Directed pairs of engines that may have work and share a contract, those in use first: prefill to decode."""
        live = [engine for _, engine in sorted(self.pool.engines.items()) if engine.live]
        pairs = [(p, c) for p in live for c in live if p is not c and p.fingerprint == c.fingerprint]
        pairs.sort(key=lambda pair: not in_use(*pair))
        return [(producer.id, consumer.id) for producer, consumer in pairs]

    def failed(self, t: float, producer: str, consumer: str) -> None:
        """A handoff failed: for a while other pairs are preferred to this one."""
        engines = self.pool.engines
        if producer not in engines or consumer not in engines or producer == consumer:
            return
        link = self.link(producer, consumer)
        link.failures += 1
        link.failed_t = t
        _add(self.pool.doubtful, producer, consumer)
        self.doubts_until_t = t + DOUBT_S

    def sever(self, t: float, producer: str, consumer: str, reason: str) -> list[AnyCommand]:
        """Take a pair out; both engines keep serving others."""
        link = self.link(producer, consumer)
        if link.out:
            return []
        link.out, link.reason, link.since_t, link.canaries = True, reason, t, []
        _add(self.pool.severed, producer, consumer)
        return [PairChanged(producer, consumer, "out", reason)]

    def mend(self, t: float, producer: str, consumer: str, reason: str) -> list[AnyCommand]:
        """Let a pair carry handoffs again."""
        link = self.link(producer, consumer)
        if not link.out:
            return []
        link.out, link.reason, link.since_t, link.canaries = False, "", t, []
        _drop(self.pool.severed, producer, consumer)
        return [PairChanged(producer, consumer, "in", reason)]

    def restarted(self, t: float, engine: Engine) -> list[AnyCommand]:
        """One engine is another process: its pairs are unknown again, in both directions."""
        commands: list[AnyCommand] = []
        for other in self.pool.engines.values():
            for producer, consumer in ((engine.id, other), (other.id, engine)):
                link = consumer.links.get(producer)
                if link is not None:
                    commands += self.mend(t, producer, consumer.id, f"{engine.id} restarted")
                    link.restart()
        return commands

    def left(self, engine: str) -> None:
        """Forget an engine."""
        self.pool.severed.pop(engine, None)
        self.pool.doubtful.pop(engine, None)
        for consumers in (self.pool.severed, self.pool.doubtful):
            for producer in list(consumers):
                _drop(consumers, producer, engine)
        for other in self.pool.engines.values():
            other.links.pop(engine, None)

    def seen(self, event: PairTried) -> None:
        """Note what a probe or canary showed of a pair."""
        engines = self.pool.engines
        if event.producer == event.consumer or event.producer not in engines or event.consumer not in engines:
            return
        if event.outcome in ("leg_2", "wrong"):
            self.failed(event.t, event.producer, event.consumer)
        elif event.outcome in ("leg_1", "untold"):
            return
        link = self.link(event.producer, event.consumer)
        link.tried_t, link.tried_s = event.t, event.seconds
        link.bytes += event.bytes
        link.transport = event.transport or link.transport

    def tick(self, t: float) -> list[AnyCommand]:
        """Forget old doubts, and try a pair again that has been out for a while."""
        if self.pool.doubtful and t > self.doubts_until_t:
            self.pool.doubtful.clear()
        if not self.pool.severed or t < self.retry_t:
            return []
        engines = self.pool.engines
        due = [
            (engines[consumer].links[producer].tried_t, producer, consumer)
            for producer, consumers in self.pool.severed.items()
            for consumer in consumers
            if t - max(self._since(producer, consumer)) >= self.settings.recovery.link_retry_s
            and engines[producer].open
            and engines[consumer].open
        ]
        if not due:
            return []
        self.retry_t = t + 1.0
        _, producer, consumer = min(due)
        return [self.again(t, producer, consumer)]

    def again(self, t: float, producer: str, consumer: str) -> TryPair:
        """Try a pair that is out."""
        self.link(producer, consumer).tried_t = t
        return self.trials.ask(t, producer, consumer, "canary", RETRY)

    def back(self, event: PairTried) -> list[AnyCommand]:
        """A pair that is out was tried again: two in a row that succeed bring it back."""
        link = self.link(event.producer, event.consumer)
        if event.outcome != "right":
            link.canaries = []
            return []
        link.canaries.append("right")
        if len(link.canaries) < BACK_AFTER:
            return [self.again(event.t, event.producer, event.consumer)]
        return self.mend(event.t, event.producer, event.consumer, f"{BACK_AFTER} handoffs in a row succeeded")

    def _since(self, producer: str, consumer: str) -> tuple[float, float]:
        link = self.pool.engines[consumer].links[producer]
        return link.since_t, link.tried_t


def in_use(producer: Engine, consumer: Engine) -> bool:
    """Whether requests are handed over from one to the other by their present roles."""
    return producer.role == "prefill" and consumer.role == "decode"


def _add(pairs: dict[str, list[str]], producer: str, consumer: str) -> None:
    consumers = pairs.setdefault(producer, [])
    if consumer not in consumers:
        consumers.append(consumer)


def _drop(pairs: dict[str, list[str]], producer: str, consumer: str) -> None:
    consumers = pairs.get(producer)
    if consumers is not None and consumer in consumers:
        consumers.remove(consumer)
        if not consumers:
            del pairs[producer]
