"""The soak: one fault after another for a long time, and at the end nothing is missing and nothing is left.

Four simulated engines and two routers serve clients of both addresses, some of whom leave. Every few seconds something
fails by a fixed seed, and heals before the next. Afterwards each attempt of a client must be in a journal, and each row
of a journal must be an attempt; what a killed router had not written yet (0.2 s) may be missing, and only that.
"""

import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from narwhal.dev import cleaned_up, ends_like_ctrl_c
from narwhal.drills.clients import Answer, Clients, say_failed
from narwhal.drills.drill import PATIENCE_S, DrillError, Figures, eventually, expect
from narwhal.drills.fleet import Engine, Fleet, open_fleet_of
from narwhal.drills.plan import Plan
from narwhal.drills.processes import Process
from narwhal.drills.router import Router

PLAN = Plan(
    standby=True,
    slo={"ttft_s": 4.0, "tpot_s": 0.5},
    kv_lease_s=10.0,
    recovery={"readmit_backoff_s": 0.5, "restarts": {"most": 1000}},
)
_HUNG_S = 4.0
_UNWRITTEN_S = 1.0
"""How long before its death a killed router may have had a row that it had not written."""
_SETTLED_S = 20.0
"""Age at which a process has what it needs; from then on it may not grow."""
_MEMORY_BYTES = 48 << 20
_DESCRIPTORS = 64
_REFUSALS = {"standby", "deposed", "stopping"}
"""Codes of a router that is not the one to ask: it keeps no row of them."""


@dataclass(frozen=True)
class _End:
    """The end of a router's process, and when it began."""

    router: Router
    begin_t: float
    end_t: float

    def covers(self, attempt: Answer) -> bool:
        """Whether an attempt was made at that router, and not over before its end began."""
        there = self.router.address == attempt.address
        return there and attempt.sent_t <= self.end_t and attempt.ended_t >= self.begin_t


@dataclass
class _Soak:
    fleet: Fleet
    clients: Clients
    random: random.Random
    faults: Counter[str] = field(default_factory=Counter)
    killed: list["_End"] = field(default_factory=list)
    stopped: list["_End"] = field(default_factory=list)
    lives: dict[int, tuple[Process, float, int]] = field(default_factory=dict)
    """Each process by its pid: since when it runs, and its memory once it has settled (0: not yet)."""


def soak(folder: Path, seconds: float, *, every_s: float = 10.0, seed: int = 45, say: Callable[[str], None]) -> Figures:
    """Let a fault happen every so many seconds, then take stock. Raises `DrillError`.

    The figures: requests, attempts, faults by kind, what was missing with a killed router, growth of memory in bytes.
    """
    with ends_like_ctrl_c(), cleaned_up() as stack:
        fleet = stack.enter_context(open_fleet_of(folder, PLAN))
        routers = [fleet.primary, fleet.standby]
        with fleet.clients(6, of=routers, retry=True, tokens=24, leaves=7, pause_s=0.02) as clients:
            run = _Soak(fleet, clients, random.Random(seed))  # noqa: S311 - the same each time
            deck: list[Callable[[_Soak], None]] = []
            until_t = time.monotonic() + seconds
            while time.monotonic() < until_t:
                began_t = time.monotonic()
                _watch(run)
                deck = deck or run.random.sample(_FAULTS, len(_FAULTS))
                fault = deck.pop()
                say(f"{until_t - began_t:5.0f} s to go, {len(clients.asked)} requests: {fault.__name__.strip('_')}")
                fault(run)
                run.faults[fault.__name__.strip("_")] += 1
                clients.more(5)
                time.sleep(max(0.0, min(began_t + every_s, until_t) - time.monotonic()))
        _watch(run)
        return _take_stock(run)


# Faults: each has healed when it returns


def _engine_dies(run: _Soak) -> None:
    engine = run.random.choice(run.fleet.engines)
    engine.process.kill()
    engine.start()
    _live(run)


def _engine_hangs(run: _Soak) -> None:
    engine = run.random.choice(run.fleet.engines)
    engine.process.send(signal.SIGSTOP)
    try:
        time.sleep(_HUNG_S)
    finally:
        engine.process.send(signal.SIGCONT)
    _live(run)


def _engine_breaks_streams(run: _Soak) -> None:
    _with_fault(run, kind="cut_stream", after_tokens=run.random.randint(1, 12), count=5)


def _engine_answers_500(run: _Soak) -> None:
    _with_fault(run, kind="status", code=500, count=3)


def _engine_refuses(run: _Soak) -> None:
    _with_fault(run, kind="refuse", duration_s=2.0)


def _engine_is_slow(run: _Soak) -> None:
    _with_fault(run, kind="slow", factor=4.0, duration_s=3.0)


def _engine_loses_its_peers(run: _Soak) -> None:
    _with_fault(run, kind="drop_peer", duration_s=2.0)


def _roles_are_swapped(run: _Soak) -> None:
    leader = _leader(run)
    roles = leader.roles()
    first, second = (run.random.choice([n for n in roles if roles[n] == role]) for role in ("prefill", "decode"))
    status, answer = leader.order("swap", a=first, b=second)
    expect(status in (200, 409), f"a swap was answered {status} {answer}")


def _router_dies(run: _Soak) -> None:
    leader = _leader(run)
    leader.process.kill()
    now = time.monotonic()
    run.killed.append(_End(leader, now - _UNWRITTEN_S, now))
    _back(run, leader)


def _router_stops(run: _Soak) -> None:
    leader = _leader(run)
    began_t = time.monotonic()
    leader.process.send(signal.SIGTERM)
    code = leader.process.wait(PATIENCE_S)
    run.stopped.append(_End(leader, began_t, time.monotonic()))
    expect(code == 0, f"the {leader.name} router ended with {code}")
    _back(run, leader)


_FAULTS: Sequence[Callable[[_Soak], None]] = (
    _engine_dies,
    _engine_hangs,
    _engine_breaks_streams,
    _engine_answers_500,
    _engine_refuses,
    _engine_is_slow,
    _engine_loses_its_peers,
    _roles_are_swapped,
    _router_dies,
    _router_stops,
)


def _with_fault(run: _Soak, **what: Any) -> None:
    engine: Engine = run.random.choice(run.fleet.engines)
    engine.fault(**what)
    run.clients.more(20)
    engine.recover()
    _live(run)


def _live(run: _Soak) -> None:
    eventually(lambda: _leader(run).all_live(), "the life of all engines")


def _leader(run: _Soak) -> Router:
    found: list[Router] = []

    def leads() -> bool:
        found[:] = [router for router in run.fleet.routers.values() if router.process.runs and router.ready()]
        return len(found) == 1

    eventually(leads, "one router that leads")
    return found[0]


def _back(run: _Soak, router: Router) -> None:
    """Start a router again; the other one leads, and it follows."""
    _leader(run)
    router.process.start()
    eventually(router.follows, f"the following of the {router.name} router")
    _live(run)


# Taking stock


def _watch(run: _Soak) -> None:
    """Note which processes there are, and their memory once they have settled."""
    for process in _processes(run):
        known = run.lives.setdefault(process.pid, (process, time.monotonic(), 0))
        if known[2] == 0 and time.monotonic() - known[1] > _SETTLED_S:
            run.lives[process.pid] = (*known[:2], process.resident_bytes())


def _processes(run: _Soak) -> list[Process]:
    engines = [engine.process for engine in run.fleet.engines]
    return [p for p in (*engines, *(router.process for router in run.fleet.routers.values())) if p.runs]


def _take_stock(run: _Soak) -> Figures:
    expect(not run.clients.failed, f"requests were never served: {say_failed(run.clients.failed)}")
    _nothing_is_left(run)
    settled = [(p, was) for pid, (p, _, was) in run.lives.items() if was and p.runs and p.pid == pid]
    grown = [process.resident_bytes() - was for process, was in settled]
    expect(max(grown, default=0) < _MEMORY_BYTES, f"processes grew by {[g >> 20 for g in grown]} MB")
    _rows_are_written(run)
    missing = _accounted(run)
    outcomes = Counter("whole" if a.whole else "left" if a.left else "not served" for a in run.clients.attempts)
    return {
        "requests": len(run.clients.asked),
        "attempts": len(run.clients.attempts),
        "left_by_clients": outcomes["left"],
        "attempts_not_served": outcomes["not served"],
        "lost_with_a_router": missing,
        "faults": sum(run.faults.values()),
        **{f"fault_{name}": count for name, count in sorted(run.faults.items())},
        "grown_bytes": max(grown, default=0),
    }


def _nothing_is_left(run: _Soak) -> None:
    """Expect that engines and routers hold nothing for anybody: requests, KV, connections."""
    leader = _leader(run)
    eventually(leader.idle, "engines without residents")
    state = leader.state()
    expect(state["queue"]["requests"] == state["seats_waiting"] == 0, f"requests wait: {state['queue']}")
    ended = sum(count for name, count in state["counts"].items() if name != "offered")
    expect(state["counts"]["offered"] == ended, f"the router has lost count: {state['counts']}")
    for engine in run.fleet.engines:
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
            eventually(lambda e=engine, n=name: e.metric(n) == 0, f"{name} 0 of {engine.id}")  # type: ignore[misc]
    for process in _processes(run):
        eventually(lambda p=process: p.descriptors() < _DESCRIPTORS, f"{process.name} without open connections")  # type: ignore[misc]


def _rows_are_written(run: _Soak) -> None:
    """Wait for the rows of the last attempts: a journal is written off the loop, a moment after an answer ends."""
    with contextlib.suppress(DrillError):  # a row that never comes is told by the books
        eventually(lambda: not _unexplained(run), "the last rows", patience_s=_UNWRITTEN_S * 10)


def _unexplained(run: _Soak) -> list[Answer]:
    """Attempts that have no row although their router lived."""
    counted = {row["id"] for router in run.fleet.routers.values() for row in router.rows("request")}
    missing = [a for a in run.clients.attempts if a.id not in counted and not _keeps_no_row(a)]
    return [a for a in missing if not _died_with_its_router(run, a)]


def _accounted(run: _Soak) -> int:
    """Compare attempts and rows; how many attempts have none since their router ended."""
    rows = [(router, row) for router in run.fleet.routers.values() for row in router.rows("request")]
    counted = Counter(row["id"] for _, row in rows)
    attempts = {attempt.id: attempt for attempt in run.clients.attempts}
    twice = [name for name, count in counted.items() if count > 1]
    expect(not twice, f"requests with two rows: {twice[:5]}")
    unknown = [name for name in counted if name.startswith("drill-") and name not in attempts]
    expect(not unknown, f"rows of requests that nobody sent: {unknown[:5]}")
    outcome = {row["id"]: row["outcome"] for _, row in rows}
    wrong = [a.says for a in attempts.values() if a.whole and outcome.get(a.id, "served") != "served"]
    expect(not wrong, f"whole answers whose row says otherwise: {wrong[:5]}")
    missing = [a for a in attempts.values() if a.id not in counted and not _keeps_no_row(a)]
    unexplained = [f"{a.id} {a.says}" for a in _unexplained(run)]
    expect(not unexplained, f"attempts without a row: {unexplained[:5]}")
    return len(missing)


def _keeps_no_row(attempt: Answer) -> bool:
    return not attempt.sent or (attempt.refused and bool(_REFUSALS & set(attempt.errors)))


def _died_with_its_router(run: _Soak, attempt: Answer) -> bool:
    """A router that is killed loses rows; one that stops resets connections that it has not taken yet."""
    killed = any(end.covers(attempt) for end in run.killed)
    return killed or (attempt.status == 0 and any(end.covers(attempt) for end in run.stopped))
