"""Links between engines that die, and KV that arrives corrupt."""

from narwhal.drills.clients import say_failed
from narwhal.drills.drill import Figures, Goal, drill, eventually, expect
from narwhal.drills.fleet import Fleet
from narwhal.drills.plan import Plan
from narwhal.drills.web import metric


@drill(
    "link-dead",
    plan=Plan(
        apart="engines",
        slo={"ttft_s": 5.0, "tpot_s": 1.0},
        serving={"admission": "open", "deadlines": {"first_token_s": 8}},
        recovery={"link_retry_s": 2, "readmit_backoff_s": 0.5},
    ),
)
def link_dead(fleet: Fleet) -> Figures:
    """One link between two engines dead.

    That pair is avoided, both engines keep serving others.

    Each engine has a network namespace of its own, and what a prefill and a decode engine send to each other is lost; a
    handoff may take 8 s (`serving.deadlines.first_token_s`). The pair must be taken out, handoffs of both with others
    must go on, nobody may be ejected, and the pair must come back with the link.
    """
    router, network = fleet.primary, fleet.network
    assert network is not None
    producer, consumer = fleet.of_role("prefill")[0], fleet.of_role("decode")[0]
    others = [(producer.id, fleet.of_role("decode")[1].id), (fleet.of_role("prefill")[1].id, consumer.id)]
    pair = (producer.id, consumer.id)
    with fleet.clients(6) as clients:
        eventually(
            lambda: router.links().get(pair, {}).get("handoffs", 0) > 0, f"a handoff from {pair[0]} to {pair[1]}"
        )
        network.cut(producer.spec.address, consumer.spec.address)
        out_s = eventually(lambda: router.links()[pair]["state"] == "out", "the pair's end")
        before = {key: link["handoffs"] for key, link in router.links().items()}
        clients.more(30)
        for other in others:
            eventually(
                lambda o=other: router.links()[o]["handoffs"] > before.get(o, 0),  # type: ignore[misc]
                f"further handoffs from {other[0]} to {other[1]}",
            )
        network.mend(producer.spec.address, consumer.spec.address)
        back_s = eventually(lambda: router.links()[pair]["state"] != "out", "the pair's return")
        clients.more(10)
    expect(not clients.failed, f"requests failed: {say_failed(clients.failed)}")
    ejected = [row["engine"] for row in router.changes("ejected")]
    expect(not ejected, f"engines were ejected for a link: {ejected}")
    out = {(row["producer"], row["consumer"]) for row in router.changes("out")}
    expect(out <= {pair, pair[::-1]}, f"other pairs were taken out too: {sorted(out)}")
    return {
        "requests": len(clients.asked),
        "failed": 0,
        "out_s": out_s,
        "longest_s": max(asked.waited_s for asked in clients.asked),
        "back_s": back_s,
    }


@drill("kv-corrupt", Goal("found_s", most=60.0), plan=Plan(speed=4.0))
def kv_corrupt(fleet: Fleet) -> Figures:
    """Persistent KV corruption on a pair.

    The canary sees it (within a minute up to 8 engines, else pairs ÷ rate), the pair is taken out, an alert says so.

    From then on one consumer spoils what it reads of one producer; requests are answered all the same, with wrong text.
    The canary is as the fleet file's defaults have it, and must take that pair out, no other and no engine; the metric
    `narwhal_link_out` tells whom to alert.
    """
    router = fleet.primary
    producer, consumer = fleet.of_role("prefill")[0], fleet.of_role("decode")[0]
    pair = (producer.id, consumer.id)
    with fleet.clients(2, pause_s=0.05) as clients:
        eventually(lambda: metric(router.metrics(), "narwhal_canary_armed") == 1, "an armed canary")
        clients.more(10)
        consumer.fault(kind="corrupt_kv", side="consumer", engine=producer.peer_name(fleet.model))
        found_s = eventually(lambda: router.links()[pair]["state"] == "out", "the pair's end", patience_s=300.0)
        clients.more(10)
    expect(not clients.failed, f"requests failed: {say_failed(clients.failed)}")
    ejected = [row["engine"] for row in router.changes("ejected")]
    expect(not ejected, f"engines were ejected for a pair: {ejected}")
    out = {(row["producer"], row["consumer"]) for row in router.changes("out")}
    expect(out == {pair}, f"the pairs that were taken out are {sorted(out)}")
    expect(metric(router.metrics(), "narwhal_link_out") == 1, "narwhal_link_out does not show the pair")
    return {"requests": len(clients.asked), "failed": 0, "found_s": found_s}
