"""Routers that die, freeze, stop and lose touch, with one standing by."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from narwhal.drills.clients import Address, Answer, Clients, ask, completion, say_failed
from narwhal.drills.drill import Figures, Goal, drill, eventually, expect
from narwhal.drills.fleet import Fleet
from narwhal.drills.plan import Plan
from narwhal.drills.router import Router
from narwhal.drills.web import metric

_SLOW_TO_ANSWER_S = 5.0
"""How long clients wait for a router whose host may be gone."""
_LONG_TOKENS = 150


@drill("router-killed", Goal("served_s", most=2.0), plan=Plan(standby=True))
def router_killed(fleet: Fleet) -> Figures:
    """Router process killed.

    Its lease is revoked (or the lock drops) at once; standby serves within 2 s, with learned state; clients that retry
    lose nothing else.

    Both routers are on one host, with the lock file. An engine was moved and roles are held before SIGKILL: the standby
    must know both, the engines' generations and the epoch, and must have gone on from what it was told. Every request
    of clients with both addresses must be served; attempts may fail only where a router was gone or stood by.
    """
    primary, standby = fleet.primary, fleet.standby
    with fleet.clients(of=[primary, standby], retry=True) as clients:
        clients.more(10)
        _move(primary, fleet.engines[0].id, "decode")
        expect(primary.order("hold", reason="a drill")[0] == 200, "the hold was refused")
        _told(standby)
        before = primary.state()
        primary.process.kill()
        served_s = _served(standby, fleet)
        after = standby.state()
        clients.more(10)
    _lost_nothing(clients)
    for key in ("hold", "epoch", "split"):
        expect(after[key] == before[key], f"{key} was {before[key]}, the standby says {after[key]}")
    for key in ("role", "generation"):
        was, now = ({e["id"]: e[key] for e in state["engines"]} for state in (before, after))
        expect(was == now, f"{key} of the engines was {was}, the standby says {now}")
    expect("goes on from what the other router knew" in standby.process.log.read_text(), "it began without knowledge")
    return {"requests": len(clients.asked), "failed": 0, "served_s": served_s, **_attempts(clients)}


@drill("router-host-lost", Goal("served_s", most=6.0), plan=Plan(standby=True, store="etcd", apart="routers"))
def router_host_lost(fleet: Fleet) -> Figures:
    """Router host lost or frozen.

    Standby serves within the lease's TTL (5 s) + 1 s.

    Each router has a network namespace of its own, engines and etcd are elsewhere. The primary's link goes down and
    stays down. Every request of clients with both addresses must be served.
    """
    primary, standby = fleet.primary, fleet.standby
    assert fleet.network is not None
    with fleet.clients(of=[primary, standby], retry=True, timeout_s=_SLOW_TO_ANSWER_S) as clients:
        clients.more(10)
        fleet.network.lose(primary.host)
        served_s = _served(standby, fleet)
        clients.more(10)
    _lost_nothing(clients)
    return {"requests": len(clients.asked), "failed": 0, "served_s": served_s, **_attempts(clients)}


@drill("router-stopped", plan=Plan(standby=True, given_socket=True))
def router_stopped(fleet: Fleet) -> Figures:
    """Router stopped as planned.

    No moment without an acceptor (behind the VIP or the rendered HAProxy); old streams finish.

    Both routers have one listening socket, as systemd gives it, and clients that never try again have its address. The
    primary gets SIGTERM amid short requests and long streams: no connection may be refused, no request may fail, the
    streams must be told whole, and the primary must end with 0.
    """
    primary, standby, told = fleet.primary, fleet.standby, threading.Semaphore(0)

    def heard(answer: Answer) -> bool:
        if answer.events == 1:
            told.release()
        return False

    body = completion(fleet.model, 0, tokens=_LONG_TOKENS, stream=True)
    with fleet.clients() as clients, ThreadPoolExecutor(4) as pool:
        clients.more(10)
        streams = [pool.submit(ask, primary.address, body, on_event=heard) for _ in range(4)]
        for _ in streams:
            told.acquire()
        began_t = time.monotonic()
        primary.process.send(signal.SIGTERM)
        eventually(standby.ready, "the standby's readiness")
        ready_s = time.monotonic() - began_t
        code = primary.process.wait(60.0)
        answers = [stream.result() for stream in streams]
        clients.more(20)
    expect(code == 0, f"the primary ended with {code}")
    for answer in answers:
        expect(answer.whole and answer.tokens == _LONG_TOKENS, f"a stream that had begun: {answer.says}")
    expect(not clients.failed, f"requests failed: {say_failed(clients.failed)}")
    longest_s = max(asked.waited_s for asked in clients.asked)
    return {"requests": len(clients.asked), "failed": 0, "standby_ready_s": ready_s, "longest_s": longest_s}


@drill("router-thawed", Goal("served_s", most=6.0), plan=Plan(standby=True, store="etcd"))
def router_thawed(fleet: Fleet) -> Figures:
    """Primary frozen (SIGSTOP), standby takes over, primary thawed.

    The old primary writes no role and answers 503 once it sees the higher epoch.

    The standby moves an engine meanwhile. The thawed primary must refuse an order from its first moment on, the role
    map in etcd must stay as the standby wrote it, and it must lead again, with those roles, once the standby is killed.
    """
    primary, standby = fleet.primary, fleet.standby
    name, other = fleet.engines[0].id, fleet.engines[-1].id
    primary.process.send(signal.SIGSTOP)
    served_s = _served(standby, fleet)
    _move(standby, name, "decode")
    written = fleet.role_map()
    primary.process.send(signal.SIGCONT)
    status, answer = primary.order("move", engine=other, role="prefill")
    expect((status, answer["error"]["code"]) == (503, "frozen"), f"an order to the thawed primary: {status} {answer}")
    deposed_s = eventually(lambda: _refuses(primary.address, fleet.model, "deposed"), "its answer 503 deposed")
    expect(fleet.role_map() == written, "the thawed primary wrote the role map")
    expect(not primary.changes("moved"), "the thawed primary moved an engine")
    expect(ask(standby.address, completion(fleet.model, 1)).whole, "the standby does not serve any more")
    standby.process.kill()
    eventually(primary.ready, "the readiness of the former primary")
    expect(primary.roles()[name] == "decode", "the former primary does not know the standby's move")
    return {"served_s": served_s, "deposed_s": deposed_s}


@drill("routers-parted", plan=Plan(standby=True, store="etcd", apart="routers"))
def routers_parted(fleet: Fleet) -> Figures:
    """Both routers cut from each other, lease store up.

    One writer: the one that holds the lease.

    What the two send to each other is lost until the standby has heard nothing for longer than the lease lives. All the
    time the primary alone must serve and hold a proven lease; the standby must refuse requests and orders.
    """
    primary, standby, network = fleet.primary, fleet.standby, fleet.network
    assert network is not None
    ttl_s = 5.0
    writers = []
    with fleet.clients() as clients:
        clients.more(5)
        network.cut(primary.host, standby.host)

        def parted() -> bool:
            writers.append(sum(router.state()["lease"]["proven"] for router in (primary, standby)))
            expect(_refuses(standby.address, fleet.model, "standby"), "the standby served a request")
            return bool(standby.state()["lease"]["lag_s"] > 1.5 * ttl_s)

        eventually(parted, "silence between the routers")
        status, answer = standby.order("move", engine=fleet.engines[0].id, role="decode")
        expect((status, answer["error"]["code"]) == (503, "frozen"), f"an order to the standby: {status} {answer}")
        _move(primary, fleet.engines[0].id, "decode")
        network.mend(primary.host, standby.host)
        eventually(lambda: standby.state()["lease"]["lag_s"] < ttl_s, "the standby's following")
        clients.more(5)
    expect(set(writers) == {1}, f"routers with a proven lease: {sorted(set(writers))}")
    expect(not clients.failed, f"requests failed: {say_failed(clients.failed)}")
    return {"requests": len(clients.asked), "failed": 0, "looks": len(writers), "writers": 1}


@drill("store-down", plan=Plan(standby=True, store="etcd", recovery={"readmit_backoff_s": 0.5}))
def store_down(fleet: Fleet) -> Figures:
    """Lease store down or out of reach.

    Serving goes on with roles, holds and generations frozen, lifecycle calls refused, nobody takes over; alert.

    etcd is killed. The primary must serve on, refuse orders with the reason, and give an engine that restarts no work;
    the standby must serve nothing. `narwhal_lease_proven` 0 is what to alert on. With etcd back, one router has proof
    and takes orders, and the engine is readmitted.
    """
    primary, standby, victim = fleet.primary, fleet.standby, fleet.of_role("decode")[-1]
    assert fleet.store is not None
    roles = primary.roles()
    with fleet.clients() as clients:
        clients.more(5)
        fleet.store.kill()
        frozen_s = eventually(lambda: not primary.state()["lease"]["proven"], "doubt about the lease")
        for verb, body in (("move", {"engine": fleet.engines[0].id, "role": "decode"}), ("hold", {})):
            status, answer = primary.order(verb, **body)
            expect((status, answer["error"]["code"]) == (503, "frozen"), f"{verb} was answered {status} {answer}")
            expect(
                "lease is unproven" in answer["reason"], f"{verb} was refused for another reason: {answer['reason']}"
            )
        expect(primary.order("reload")[0] == 409, "a reload was not refused")
        before = primary.engine(victim.id)["generation"]
        victim.process.kill()
        victim.start()
        eventually(lambda: primary.engine(victim.id)["generation"] != before, "the new generation")
        clients.more(20)
        expect(primary.engine(victim.id)["state"] == "ejected", "an engine's new life was admitted without the store")
        expect(_refuses(standby.address, fleet.model, "standby"), "the standby served a request")
        expect(primary.roles() == roles, "roles changed without the store")
        expect(metric(primary.metrics(), "narwhal_lease_proven") == 0, "narwhal_lease_proven is not 0")
        fleet.store.start()
        both = (primary, standby)
        eventually(lambda: sum(r.state()["lease"]["proven"] for r in both) == 1, "one router with proof of its lease")
        leader = next(router for router in both if router.state()["lease"]["proven"])
        eventually(lambda: leader.engine(victim.id)["state"] == "live", "the engine's readmission")
        _move(leader, fleet.engines[0].id, "decode")
    expect(not [a for a in clients.failed if leader is primary], f"requests failed: {say_failed(clients.failed)}")
    return {"requests": len(clients.asked), "failed": len(clients.failed), "frozen_s": frozen_s}


def _move(router: Router, engine: str, role: str) -> None:
    status, answer = router.order("move", engine=engine, role=role)
    expect(status == 200, f"the move of {engine} to {role} was answered {status} {answer}")
    eventually(lambda: router.roles()[engine] == role, f"the move of {engine}")


def _served(router: Router, fleet: Fleet) -> float:
    """Seconds until a router serves a request."""
    return eventually(lambda: ask(router.address, completion(fleet.model, 7)).whole, f"an answer of the {router.name}")


def _told(standby: Router) -> None:
    """Wait for a line that was made after all that has happened until now: the second from now on."""
    lines = metric(standby.metrics(), "narwhal_follow_lines_total")
    eventually(lambda: metric(standby.metrics(), "narwhal_follow_lines_total") >= lines + 2, "lines for the standby")


def _refuses(address: Address, model: str, code: str) -> bool:
    answer = ask(address, completion(model, 3))
    return answer.status == 503 and answer.errors == [code]


def _lost_nothing(clients: Clients) -> None:
    """Expect that all were served, and that no attempt ended otherwise than by a router that was gone or stood by."""
    expect(not clients.failed, f"requests failed: {say_failed(clients.failed)}")
    for attempt in clients.attempts:
        gone = bool(attempt.broken) or (attempt.status == 200 and not attempt.done and not attempt.errors)
        stood_by = attempt.status == 503 and attempt.errors[0] in ("standby", "deposed", "stopping")
        expect(attempt.whole or gone or stood_by, f"an attempt ended otherwise than by its router: {attempt.says}")


def _attempts(clients: Clients) -> Figures:
    broken = sum(bool(attempt.broken) and attempt.status != 0 for attempt in clients.attempts)
    return {"attempts": len(clients.attempts), "broken_answers": broken}
