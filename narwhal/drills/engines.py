"""Engines that die, hang and restart."""

import signal
import statistics
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from narwhal.drills.clients import Answer, ask, completion, say_failed
from narwhal.drills.drill import Figures, Goal, drill, eventually, expect
from narwhal.drills.fleet import Engine, Fleet
from narwhal.drills.plan import Plan
from narwhal.drills.router import Router
from narwhal.fleet import load_profile

_STREAMS, _DECLINED = 8, 4
_TOKENS = 200
_DECLINE = {"x-narwhal-continue": "off"}
_QUICK = {"readmit_backoff_s": 0.5}


@drill(
    "decode-killed",
    Goal("gap_beyond_prefill_s", most=3.0),
    plan=Plan(speed=1.0),
)
def decode_killed(fleet: Fleet) -> Figures:
    """Decode engine killed in mid-stream.

    Every eligible stream goes on, longest gap ≤ 3 s + one prefill, no token lost or twice; others get one clear
    error event.

    Eight streams may go on and four decline it, all of one prompt, whose answer is known. The busier decode engine is
    killed once all of them tell tokens.
    """
    router = fleet.primary
    body = completion(fleet.model, 0, tokens=_TOKENS, stream=True)
    right = ask(router.address, body)
    expect(right.whole and right.tokens == _TOKENS, f"the answer without a fault: {right.says}")
    victim, answers = _killed_amid_streams(fleet, body)
    eligible, declined = answers[:_STREAMS], answers[_STREAMS:]
    for answer in eligible:
        expect(answer.whole, f"a stream that may go on was not told whole: {answer.says}")
        expect(answer.text == right.text, f"a stream went on with other text: {answer.text!r} for {right.text!r}")
        expect(answer.tokens == _TOKENS, f"usage says {answer.tokens} tokens for {_TOKENS}")
    for answer in declined:
        one_error = len(answer.errors) == 1 and not answer.done
        expect(answer.whole or one_error, f"a stream that declines ended otherwise than by one error: {answer.says}")
    rows = _rows_of(router, [answer.id for answer in answers])
    cut = sum(row["outcome"] == "cut" for row in rows)
    expect(cut == sum(not answer.whole for answer in declined), f"the journal has {cut} cut streams")
    continued = sum(row["continued"] for row in rows)
    expect(continued >= 1, f"{victim.id} was killed, and no stream went on")
    eventually(router.idle, "the release of what the streams held")
    gap_s = max(answer.gap_s for answer in eligible)
    prefill_s = (right.first_t or right.ended_t) - right.sent_t
    return {
        "streams": len(answers),
        "continued": continued,
        "ended_by_error": cut,
        "gap_s": gap_s,
        "gap_beyond_prefill_s": max(gap_s - prefill_s, 0.0),
    }


def _killed_amid_streams(fleet: Fleet, body: dict[str, Any]) -> tuple[Engine, list[Answer]]:
    """Kill the busier decode engine once every stream has told something; the answers, those that decline last."""
    router, told = fleet.primary, set[str]()
    lock = threading.Lock()

    def heard(answer: Answer) -> bool:
        if answer.first_t is not None:
            with lock:
                told.add(answer.id)
        return False

    def begin(pool: ThreadPoolExecutor, headers: dict[str, str]) -> "Future[Answer]":
        return pool.submit(ask, router.address, body, headers=headers, on_event=heard)

    with ThreadPoolExecutor(_STREAMS + _DECLINED) as pool:
        eligible: list[Future[Answer]] = []
        declined: list[Future[Answer]] = []
        for place in range(_STREAMS + _DECLINED):  # in pairs, so that each engine gets both kinds
            group, headers = (declined, _DECLINE) if place % 6 >= 4 else (eligible, {})
            group.append(begin(pool, headers))
        eventually(lambda: len(told) == _STREAMS + _DECLINED, "the first token of every stream")
        names = [engine.id for engine in fleet.of_role("decode")]
        residents = {e["id"]: e["residents"] for e in router.state()["engines"] if e["id"] in names}
        victim = next(e for e in fleet.engines if e.id == max(residents, key=lambda name: residents[name]))
        victim.process.kill()
        return victim, [future.result() for future in (*eligible, *declined)]


def _rows_of(router: Router, ids: list[str]) -> list[Any]:
    """The journal's rows of these requests, once they are all there."""
    found: list[Any] = []

    def all_there() -> bool:
        found[:] = [row for row in router.rows("request") if row["id"] in ids]
        return len(found) == len(ids)

    eventually(all_there, "the journal's rows of all requests")
    return found


@drill("engine-killed", plan=Plan(recovery=_QUICK))
def engine_killed(fleet: Fleet) -> Figures:
    """Engine killed, new requests.

    None fails.

    A prefill engine is killed under traffic, then a decode engine.
    """
    router, new = fleet.primary, 0
    with fleet.clients() as clients:
        clients.more(20)
        for victim in (fleet.of_role("prefill")[0], fleet.of_role("decode")[0]):
            victim.process.kill()
            killed_t = time.monotonic()
            eventually(lambda v=victim: router.engine(v.id)["state"] == "ejected", f"the ejection of {victim.id}")  # type: ignore[misc]
            clients.more(20)
            failed = [asked for asked in clients.since(killed_t) if not asked.served]
            expect(not failed, f"requests after the death of {victim.id} failed: {say_failed(failed)}")
            new += len(clients.since(killed_t))
    expect(not clients.failed, f"requests failed: {say_failed(clients.failed)}")
    return {"new_requests": new, "failed": 0, "longest_s": max(asked.waited_s for asked in clients.asked)}


@drill(
    "engine-hangs",
    Goal("suspected_s", most=3.0),
    Goal("longest_wait_s", most=3.0),
    plan=Plan(recovery=_QUICK),
)
def engine_hangs(fleet: Fleet) -> Figures:
    """Engine hangs (SIGSTOP).

    Suspected within 3 s, no new work on it, no request waits more than 3 s because of it, an innocent peer is never
    blamed.

    A prefill engine is stopped and goes on, then a decode engine; the last of a role is left out. Waits are compared
    with the median before.
    """
    router, began_t = fleet.primary, time.monotonic()
    victims = [engines[-1] for role in ("prefill", "decode") if len(engines := fleet.of_role(role)) > 1]
    suspected_s, waited_s = [], []
    with fleet.clients() as clients:
        clients.more(20)
        usual_s = statistics.median(asked.waited_s for asked in clients.asked)
        for victim in victims:
            stopped_t = time.monotonic()
            victim.process.send_group(signal.SIGSTOP)
            try:
                eventually(lambda v=victim, t=stopped_t: bool(_known(router, v.id, t)), f"suspicion of {victim.id}")  # type: ignore[misc]
                clients.more(20)
                eventually(lambda v=victim: router.engine(v.id)["state"] == "ejected", "the ejection")  # type: ignore[misc]
                clients.more(10)
            finally:
                went_on_t = time.monotonic()
                victim.process.send_group(signal.SIGCONT)
            waited_s += [asked.waited_s - usual_s for asked in clients.since(stopped_t)]
            known_t = min(_known(router, victim.id, stopped_t))
            suspected_s.append(known_t - stopped_t)
            given = _given_to(router, victim.id, known_t, went_on_t)
            expect(not given, f"{victim.id} was suspected, and got {len(given)} further requests")
            eventually(lambda v=victim: router.engine(v.id)["state"] == "live", "the readmission")  # type: ignore[misc]
        clients.more(10)
    expect(not clients.failed, f"requests failed: {say_failed(clients.failed)}")
    _blamed_alone(router, began_t, {victim.id for victim in victims})
    return {
        "requests": len(clients.asked),
        "failed": 0,
        "suspected_s": max(suspected_s),
        "longest_wait_s": max(waited_s),
    }


def _known(router: Router, name: str, since_t: float) -> list[float]:
    """When an engine was suspected or ejected, since some time."""
    rows = [row for change in ("suspected", "ejected") for row in router.changes(change)]
    return [row["t"] for row in rows if row.get("engine") == name and row["t"] >= since_t]


def _given_to(router: Router, name: str, begin_t: float, end_t: float) -> list[Any]:
    """The requests that an engine was given in a span of time: leg 2 is placed when leg 1 is answered."""

    def given_t(row: Any) -> float:
        second = row["decode_engine"] == name and row["prefilled_s"] is not None
        return float(row["arrived_t"] + (row["prefilled_s"] if second else 0.0))

    rows = [row for row in router.rows("request") if name in (row["prefill_engine"], row["decode_engine"])]
    return [row for row in rows if begin_t < given_t(row) < end_t]


def _blamed_alone(router: Router, since_t: float, names: set[str]) -> None:
    """Expect that these engines and no others were ejected since then, and that no pair was taken out."""
    ejected = {row["engine"] for row in router.changes("ejected") if row["t"] >= since_t}
    expect(ejected == names, f"ejected were {sorted(ejected)}, at fault {sorted(names)}")
    pairs = [f"{row['producer']} > {row['consumer']}" for row in router.changes("out") if row["t"] >= since_t]
    expect(not pairs, f"pairs were taken out, and no link was at fault: {pairs}")


@drill(
    "engine-restarts",
    plan=Plan(recovery={**_QUICK, "readmit_after": 4}),
)
def engine_restarts(fleet: Fleet) -> Figures:
    """Engine restarts with another generation.

    Gets no work until readmitted; old profile not trusted.

    A decode engine is killed and started again at once; a simulated one with a smaller KV cache, which makes it one of
    another contract: its readmission must say so.
    """
    router, victim, began_t = fleet.primary, fleet.of_role("decode")[-1], time.monotonic()
    before = router.engine(victim.id)["generation"]
    with fleet.clients() as clients:
        clients.more(10)
        victim.process.kill()
        if not fleet.real:
            _shrink(fleet, victim)
        victim.start()
        started_t = time.monotonic()
        eventually(lambda: router.engine(victim.id)["generation"] != before, "the new generation")
        seen_t = time.monotonic()
        clients.more(10)
        eventually(lambda: router.engine(victim.id)["state"] == "live", "the readmission")
        readmitted_s = time.monotonic() - started_t
        clients.more(10)
    expect(not clients.failed, f"requests failed: {say_failed(clients.failed)}")
    back = [row for row in router.changes("readmitted") if row["engine"] == victim.id and row["t"] >= began_t]
    expect(len(back) == 1, f"it was readmitted {len(back)} times")
    for proof in ("completes prompts", "hands KV over both ways"):
        expect(proof in back[0]["reason"], f"it was readmitted without a proof that it {proof}: {back[0]['reason']}")
    expect(fleet.real or "contract" in back[0]["reason"], f"its other contract was not noted: {back[0]['reason']}")
    given = _given_to(router, victim.id, seen_t, back[0]["t"])
    expect(not given, f"the new generation got {len(given)} requests before its readmission")
    _blamed_alone(router, began_t, {victim.id})
    return {"requests": len(clients.asked), "failed": 0, "readmitted_s": readmitted_s}


def _shrink(fleet: Fleet, engine: Engine) -> None:
    """Have an engine come back with half its KV cache."""
    profile = load_profile("demo")
    smaller = profile.model_copy(update={"kv_capacity_tokens": profile.kv_capacity_tokens // 2})
    path = fleet.folder / "smaller.json"
    path.write_text(smaller.model_dump_json(by_alias=True))
    argv = list(engine.process.argv)
    argv[argv.index("--profile") + 1] = str(path)
    engine.process.argv = argv
