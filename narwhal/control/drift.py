"""Engines that become slow: decode intervals against the profile, and against the fleet; and those that stand still."""

from statistics import median

from narwhal.control.commands import AnyCommand
from narwhal.control.events import EngineObserved
from narwhal.control.standing import changed, eject
from narwhal.control.state import Engine, Pool, Settings
from narwhal.control.vitals import SILENT

LEAST_INTERVALS = 8
"""Intervals between two looks that make a measurement."""
WEIGHT = 0.5
"""Weight of one measurement."""
FRESH_S = 30.0
"""How long a measurement stands."""
STANDSTILL_LOOKS = 4
"""Looks without a token from an engine that has work, before it is asked for one."""
STANDSTILL_FACTOR = 4.0
"""How many times a prompt's predicted time it may take besides."""


class Drift:
    """Keeps each engine's ratio. Methods return commands in order."""

    def __init__(self, settings: Settings, pool: Pool) -> None:
        self.settings = settings
        self.pool = pool

    def observed(self, event: EngineObserved, engine: Engine) -> list[AnyCommand]:
        """Take what its metrics say of its pace, and judge it."""
        if not engine.measured or event.intervals < LEAST_INTERVALS or engine.prefills or not engine.live:
            return []
        expected_s = engine.curves.interval_s(max(event.running, 1), event.kv_used_tokens)
        vitals = engine.vitals
        fresh = event.t - vitals.drift_t < FRESH_S
        ratio = event.interval_s / expected_s
        vitals.drift = vitals.drift + WEIGHT * (ratio - vitals.drift) if fresh else ratio
        vitals.drift_t = event.t
        return self._judge(event.t, engine)

    def fleet(self, t: float, but: Engine | None = None) -> float:
        """Median ratio of the engines that were measured lately, one left out; 1 where there are none."""
        return median([e.vitals.drift for e in self.pool.engines.values() if e is not but and _fresh(e, t)] or [1.0])

    def _judge(self, t: float, engine: Engine) -> list[AnyCommand]:
        """A drift counts beyond what the rest of the fleet has: where all are slow, none is at fault."""
        rules, vitals = self.settings.recovery.drift, engine.vitals
        usual = max(self.fleet(t, engine), 1.0)
        excess = vitals.drift / usual
        if excess < rules.eject_at:
            vitals.drift_out_t = SILENT
        elif vitals.drift_out_t == SILENT:
            vitals.drift_out_t = t
        if excess < rules.probation_at:
            vitals.drift_over_t = SILENT
            if not engine.probation:
                return []
            engine.probation = False
            recovered = changed(engine, t, "recovered", f"its decode interval is {vitals.drift:.2f} of the profile's")
            vitals.reason = ""
            return [recovered]
        if vitals.drift_over_t == SILENT:
            vitals.drift_over_t = t
        if t - vitals.drift_over_t < rules.span_s:
            return []
        said = f"its decode interval is {vitals.drift:.2f} of the profile's, the fleet's {usual:.2f}"
        out = vitals.drift_out_t != SILENT and t - vitals.drift_out_t >= rules.span_s
        if out and engine.probation and self._compared(t, engine):
            return eject(self.pool, self.settings, engine, t, f"slow: {said}", soft=True)
        if engine.probation:
            return []
        engine.probation = True
        return [changed(engine, t, "probation", f"slow: {said}")]

    def _compared(self, t: float, engine: Engine) -> bool:
        """Whether there is another engine to tell by that it is not the whole fleet that is slow."""
        return any(_fresh(other, t) for other in self.pool.engines.values() if other is not engine)

    def stands_still(self, event: EngineObserved, engine: Engine) -> bool:
        """Whether an engine with work of ours has made no token for several looks, though it answers them.

        What it says of its load is not asked: it may be as old as its last token. One that prefills makes none for
        long: that counts only where its speed is known, and it needs several times as long.
        """
        vitals, patience_s = engine.vitals, STANDSTILL_LOOKS * self.settings.recovery.probe_interval_s
        if event.tokens < 0:
            return False
        if event.tokens != vitals.tokens or not (engine.streams or engine.prefills):
            vitals.tokens, vitals.tokens_t = event.tokens, event.t
            return False
        if event.t - vitals.tokens_t < patience_s:
            return False
        if not engine.prefills:
            return True
        sent_t, cost_s, _ = next(iter(engine.prefills.values()))
        began_t = max(sent_t, engine.last_prefill_t)
        return engine.knows_prefill and event.t - began_t > patience_s + STANDSTILL_FACTOR * cost_s


def _fresh(engine: Engine, t: float) -> bool:
    return engine.live and t - engine.vitals.drift_t < FRESH_S
