"""Too much, nonsense, orders that cannot be carried out, and a full disk."""

import contextlib
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import uvloop

from narwhal.drills.clients import Answer, ask, completion, say_failed
from narwhal.drills.drill import PATIENCE_S, Figures, Goal, drill, eventually, expect
from narwhal.drills.fleet import Fleet
from narwhal.drills.plan import Plan
from narwhal.drills.router import Router
from narwhal.drills.web import metric
from narwhal.measure import Load, Phase, Target, poisson, score

_SEATS = 2
_TIMES = 100
_SECONDS = 10.0
_TOKENS = 160
_MEMORY_BYTES = 100 << 20
"""What overload may add to a router: some thousand requests that are kept would take more."""


@drill(
    "overload",
    Goal("refused_p99_s", most=0.01),
    Goal("slo_met", least=0.9),
    plan=Plan(2, 1, seats=_SEATS, slo={"ttft_s": 3.0, "tpot_s": 0.5}, serving={"admission": "predictive"}),
)
def overload(fleet: Fleet) -> Figures:
    """100× offered load.

    Bounded memory, refusals within 10 ms with an honest Retry-After, admitted requests keep their SLO ≥ 90 %.

    For ten seconds a hundred times as many requests are sent (open loop, each on a connection of its own) as the decode
    engine's two seats can serve, by the time that one takes alone. Each must be served whole or refused, the router's
    counts must be the clients', refusals must name a Retry-After, and the router may not grow by more than 100 MB.
    """
    router = fleet.primary
    alone = ask(router.address, completion(fleet.model, 0, tokens=_TOKENS))
    expect(alone.whole, f"a request without load: {alone.says}")
    rate_rps = _TIMES * _SEATS / (alone.ended_t - alone.sent_t)
    began_bytes = router.process.resident_bytes()
    schedule = poisson([Phase("overload", _SECONDS, rate_rps, 40, _TOKENS)], seed=6)
    load = Load(Target(*router.address, fleet.model), schedule, timeout_s=PATIENCE_S)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(uvloop.run, load.run())
        refused = _a_refusal(fleet)
        running.result()
    grown = router.process.resident_bytes() - began_bytes
    came = score(load.outcomes, fleet.expanded.fleet.slo)
    odd = [f"{one.result}: {one.error}" for one in load.outcomes if one.result not in ("served", "refused")]
    expect(not odd, f"requests were neither served nor refused: {odd[:3]}")
    expect(came.refused > came.served >= _SEATS, f"{came.served} were served, {came.refused} refused: no overload")
    expect(refused.retry_after.isdigit() and int(refused.retry_after) >= 1, f"Retry-After was {refused.retry_after!r}")
    expect(grown < _MEMORY_BYTES, f"the router grew by {grown >> 20} MB")
    eventually(router.idle, "empty engines")
    counts = router.state()["counts"]
    wrong = {name: counts[name] for name in ("failed", "cut", "cancelled") if counts[name]}
    expect(not wrong and counts["offered"] >= came.offered, f"clients sent {came.offered}, the router counts {counts}")
    refusals_s = sorted((one.ended_s or 0.0) - one.sent_s for one in load.outcomes if one.result == "refused")
    return {
        "offered": came.offered,
        "served": came.served,
        "refused": came.refused,
        "grown_bytes": grown,
        "refused_p50_s": statistics.median(refusals_s),
        "refused_p99_s": refusals_s[int(0.99 * len(refusals_s))],
        "slo_met": came.attained / came.served,
    }


def _a_refusal(fleet: Fleet) -> Answer:
    """The first refusal of a client that asks one request after another."""
    found: list[Answer] = []

    def refused() -> bool:
        found[:] = [ask(fleet.primary.address, completion(fleet.model, 1, tokens=_TOKENS))]
        return found[0].refused

    eventually(refused, "a refusal")
    return found[0]


@drill("lifecycle-refused", plan=Plan(3, 1, standby=True))
def lifecycle_refused(fleet: Fleet) -> Figures:
    """Failed lifecycle call (drain, readmit, move).

    Changes nothing, says why.

    Each of these is asked for under traffic: to move or drain the last prefill engine (a floor), to move a pinned one,
    or one while roles are held, engines, hosts, roles and keys that are none, orders to the standby. Each must be
    refused with a reason, and leave roles, pins, epoch, hold and engines as they were.
    """
    router, standby = fleet.primary, fleet.standby
    first, last = fleet.engines[0].id, fleet.engines[-1].id
    wrong: list[tuple[Router, int, str, dict[str, object]]] = [
        (router, 409, "move", {"engine": first, "role": "decode"}),
        (router, 404, "move", {"engine": "nowhere/7", "role": "decode"}),
        (router, 400, "move", {"engine": last, "role": "both"}),
        (router, 400, "move", {"engine": last, "role": "prefill", "soon": True}),
        (router, 404, "swap", {"a": first, "b": "nowhere/7"}),
        (router, 409, "drain", {"engines": [first]}),
        (router, 409, "drain", {"engines": [last, first]}),
        (router, 404, "drain", {"engines": [last, "nowhere"]}),
        (router, 400, "drain", {"engines": [last], "deadline": 5}),
        (router, 404, "readmit", {"engines": ["nowhere/7"]}),
        (router, 404, "pin", {"engine": "nowhere/7", "role": "decode"}),
        (router, 400, "pin", {"engine": last, "role": "both"}),
        (router, 400, "hold", {"because": "a drill"}),
        (standby, 503, "move", {"engine": last, "role": "prefill"}),
        (standby, 503, "hold", {}),
        (standby, 503, "drain", {"engines": [last]}),
    ]
    with fleet.clients() as clients:
        clients.more(5)
        calls = [_refused(router, *call) for call in wrong]
        for verb, body in (("pin", {"engine": last, "role": "decode"}), ("hold", {"reason": "a drill"})):
            expect(router.order(verb, **body)[0] == 200, f"{verb} was refused")
            calls.append(_refused(router, router, 409, "move", {"engine": last, "role": "prefill"}))
        calls.append(_refused(router, router, 409, "swap", {"a": first, "b": last}))
        clients.more(5)
    expect(not clients.failed, f"requests failed: {say_failed(clients.failed)}")
    expect(not router.changes("moved"), "an engine was moved")
    return {"requests": len(clients.asked), "failed": 0, "calls": len(calls)}


def _refused(leader: Router, asked: Router, status: int, verb: str, body: dict[str, object]) -> str:
    """The reason that an order is refused with; nothing may have changed."""
    before = _standing(leader)
    found, answer = asked.order(verb, **body)
    expect(found == status, f"{verb} {body} was answered {found}, {status} was due: {answer}")
    error = answer.get("error") or {}
    reason = str(error.get("message") or "")
    expect(bool(reason) and answer["done"] is False, f"{verb} {body} was refused without a reason: {answer}")
    expect(_standing(leader) == before, f"{verb} {body} was refused, and changed something")
    return reason


def _standing(router: Router) -> object:
    """All that an order may change."""
    state = router.state()
    engines = [[engine[key] for key in ("id", "role", "pin", "generation", "state")] for engine in state["engines"]]
    return state["epoch"], state["hold"], state["split"], engines


@drill("disk-full", plan=Plan(small_disk=True))
def disk_full(fleet: Fleet) -> Figures:
    """Disk full, journal unwritable.

    Serving goes on, degraded and alerted.

    The journal is on a disk of 2 MB (a tmpfs in the router's own mount namespace), which a file fills under traffic. No
    request may fail; `narwhal_journal_degraded` and the state must say so. When the file is gone, the journal must be
    written again, with lines counted as lost.
    """
    router = fleet.primary
    filler = router.journal_dir.with_name("filler")
    with fleet.clients() as clients:
        clients.more(10)
        _fill(filler)
        noticed_s = eventually(lambda: router.state()["journal"]["error"] != "", "the notice of a full disk")
        expect(metric(router.metrics(), "narwhal_journal_degraded") == 1, "narwhal_journal_degraded is not 1")
        clients.more(20)
        expect(router.ready(), "the router is not ready any more")
        filler.unlink()
        again_s = eventually(lambda: router.state()["journal"]["error"] == "", "the journal's return")
        before = len(router.rows("request"))
        clients.more(10)
        eventually(lambda: len(router.rows("request")) > before, "further rows")
        dropped = router.state()["journal"]["dropped_lines"]
    expect(not clients.failed, f"requests failed: {say_failed(clients.failed)}")
    expect(dropped > 0, "no line was counted as lost")
    return {
        "requests": len(clients.asked),
        "failed": 0,
        "dropped_lines": dropped,
        "noticed_s": noticed_s,
        "written_again_s": again_s,
    }


def _fill(path: Path) -> None:
    """Write until nothing more fits."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
