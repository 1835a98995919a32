"""What the router says about itself: `RouterState`."""

import os
from typing import TYPE_CHECKING, Any

from narwhal.control.drains import remains
from narwhal.control.learning import PRIOR_SAMPLES
from narwhal.control.placement import degraded
from narwhal.control.standing import most_misses
from narwhal.control.state import Engine, Phase, Settings
from narwhal.control.strikes import strikes
from narwhal.control.tenants import Account
from narwhal.control.vitals import SILENT

if TYPE_CHECKING:
    from narwhal.router.shell import Shell


def router_state(shell: "Shell", fleet: str, model: str, urls: dict[str, str], started_t: float) -> dict[str, Any]:
    """The `RouterState` document (schema: `schemas/router-state/v1.json`)."""
    pool, metrics, now = shell.control.pool, shell.metrics, shell.now()
    prefill, decode = pool.split()
    recent = list(shell.recent)
    waiting = len(pool.queue) + len(pool.held)
    queued = (x.arrived_t for x in pool.requests.values() if x.phase in (Phase.QUEUED, Phase.HELD))
    oldest = min(queued, default=None) if waiting else None
    return {
        "apiVersion": "narwhal/v1",
        "kind": "RouterState",
        "fleet": fleet,
        "model": model,
        "pid": os.getpid(),
        "uptime_s": now - started_t,
        "epoch": pool.epoch,
        "hold": {"on": pool.hold, "reason": pool.hold_reason},
        "policy": shell.settings.controller.policy,
        "split": {"prefill": prefill, "decode": decode},
        "load": shell.load(),
        "queue": {
            "requests": waiting,
            "oldest_s": max(now - oldest, 0.0) if oldest is not None else 0.0,
        },
        "degraded": degraded(pool, shell.settings),
        "seats_waiting": len(pool.seats),
        "counts": {
            "offered": metrics.offered,
            **{name: metrics.count(name) for name in ("served", "refused", "failed", "cut", "cancelled")},
        },
        "went_on": {"retried": metrics.retries, "continued": metrics.continuations},
        "attainment_60s": sum(met for _, met in recent) / len(recent) if recent else None,
        "journal": {"dropped_lines": shell.journal.dropped, "error": shell.journal.error},
        "workers": shell.workers,
        "tenants": [_tenant(pool.accounts[name]) for name in pool.accounts.configured],
        "engines": [_engine(shell, engine, urls.get(name, ""), now) for name, engine in sorted(pool.engines.items())],
    }


def _tenant(account: Account) -> dict[str, Any]:
    return {
        "name": account.name,
        "weight": account.weight,
        "priority": account.priority,
        "open": account.open,
        "waiting": account.waiting,
        "tokens": account.tokens,
    }


def _engine(shell: "Shell", engine: Engine, url: str, now: float) -> dict[str, Any]:
    return {
        "id": engine.id,
        "url": url,
        "role": engine.role,
        "pin": engine.pin,
        "generation": engine.generation,
        "state": standing(engine),
        "drain": _drain(shell, engine, now) if engine.draining else None,
        "residents": engine.charged_streams,
        "prefills": len(engine.prefills),
        "kv_tokens": engine.charged_kv_tokens,
        "kv_capacity_tokens": engine.curves.kv_capacity_tokens,
        "backlog_s": engine.backlog_s(now),
        "occupancy": engine.occupancy(shell.settings.slo.tpot_s),
        "cohort": engine.fingerprint,
        "lone": engine.id in shell.control.pool.lone,
        "learning": _learning(engine),
        "reason": reason(shell.settings, engine),
        "since_s": max(now - _since_t(engine), 0.0),
        "probation": engine.probation,
        "strikes": strikes(engine, now, shell.settings.recovery.strike_half_life_s),
        "drift": engine.vitals.drift,
        "restarts": len(engine.vitals.starts_t),
        "alarms": engine.vitals.alarms,
    }


def _drain(shell: "Shell", engine: Engine, now: float) -> dict[str, Any]:
    """How far a drain is."""
    left = remains(shell.control.pool, shell.settings, shell.control.health.trials, engine, now)
    deadline_s = engine.drain.until_t - now
    return {
        **left._asdict(),
        "deadline_s": None if deadline_s == float("inf") else max(deadline_s, 0.0),
        "stays": not engine.drain.life,
    }


def _learning(engine: Engine) -> dict[str, int] | None:
    """What its speed is known from, where that is no profile."""
    if engine.meter is None:
        return None
    learned = engine.meter.learned
    return {
        "prefill_samples": learned.prefill.samples,
        "decode_samples": learned.decode.samples,
        "needed_samples": PRIOR_SAMPLES,
    }


def standing(engine: Engine) -> str:
    """One word for an engine's standing."""
    if engine.ejected:
        return "ejected"
    if not engine.admitted:
        return "unadmitted"
    if engine.leaves_t is not None:
        return "leaving"
    if engine.draining:
        return "drained" if engine.drain.done else "draining"
    if engine.suspected or engine.questions:
        return "suspected"
    return "silent" if engine.vitals.misses else "live"


def reason(settings: Settings, engine: Engine) -> str:
    """Why it is not live, or on probation; empty when it is neither."""
    word, misses = standing(engine), engine.vitals.misses
    if word != "silent":
        return engine.vitals.reason if word != "live" or engine.probation else ""
    looks = "look" if misses == 1 else "looks"
    most = most_misses(settings)
    return f"{misses} {looks} failed; as the last {engine.role} engine it is out after {most} without an answer"


def _since_t(engine: Engine) -> float:
    """Since when it stands as it does; a silent one since it answered last."""
    vitals = engine.vitals
    return vitals.seen_t if standing(engine) == "silent" and vitals.seen_t > SILENT else vitals.since_t
