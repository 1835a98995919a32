from typing import Any

import pytest

from narwhal.control.guards import LONG_AGO_S
from narwhal.diagnose import drain_lines, explain, learning_lines, lease_is_well, may_stop, refusal, status_lines
from narwhal.diagnose.words import degraded_lines, guard_words, lease_lines


def decision(number: int, outcome: str, **changes: Any) -> dict[str, Any]:
    return {
        "id": number,
        "t": 10.0 * number,
        "trigger": "step",
        "policy": "reactive",
        "prefill": 2,
        "decode": 2,
        "outcome": outcome,
        "reason": f"reason {number}",
        "candidates": [{"prefill": 2, "decode": 2, "ttft": 1.31, "tpot": 0.5, "queue": 0.4, "score": 1.31}],
        "guards": [{"name": "cooldown_s", "passed": False, "value": 3.0, "limit": 10.0, "engine": "local/1"}],
        "moves": [{"engine": "local/1", "source": "decode", "target": "prefill"}],
        "inputs": {"occupancy": 0.42},
        **changes,
    }


def test_why_tells_the_last_move_and_what_held_the_others() -> None:
    moves = [decision(1, "moved"), decision(2, "moved")]
    decisions = [decision(1, "held"), *moves, decision(3, "held"), decision(4, "stay")]
    text = "\n".join(explain(moves, decisions, 95.4))
    assert "last move: decision 2, 1 min 15 s ago, reactive" in text
    assert "held: decision 3, 1 min 5 s ago" in text
    assert "because reason 2" in text
    assert "held back since: 1 decision, the latest" in text
    assert "held    the last move to decode was 3 s ago, the cooldown is 10 s" in text
    assert "2P2D" in text
    assert "occupancy 0.42" in text


def test_why_lets_the_guards_speak_for_themselves() -> None:
    held = decision(1, "held", reason="TTFT 1.31; held by hold: 1 against 0", guards=[guard("hold", False, 1, 0)])
    lines = explain([], [held], held["t"] - 0.001, "noon")
    assert "  because TTFT 1.31" in lines
    assert "  held    moves are on hold: noon" in lines
    assert "held: decision 1, 0 s ago" in "\n".join(lines)


def guard(name: str, passed: bool, value: float, limit: float, engine: str = "") -> dict[str, Any]:
    return {"name": name, "passed": passed, "value": value, "limit": limit, "engine": engine}


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (guard("hold", False, 1, 0), "moves are on hold"),
        (guard("hold", True, 0, 0), "moves are not on hold"),
        (guard("min_prefill", False, 0, 1), "prefill would have 0 engines, its floor is 1"),
        (guard("min_decode", True, 1, 1), "decode would have 1 engine, its floor is 1"),
        (guard("pin", False, 1, 0, "local/1"), "local/1 is pinned to decode"),
        (guard("pin", True, 0, 0, "local/1"), "local/1 is not pinned against it"),
        (guard("dwell_s", False, 2, 10, "local/1"), "local/1 is in its role for 2 s of 10 s"),
        (guard("dwell_s", True, 2, 0, "local/1"), "local/1 is in its role for 2 s"),
        (guard("dwell_s", True, LONG_AGO_S, 10, "local/1"), "local/1 never changed its role"),
        (guard("cooldown_s", True, LONG_AGO_S, 10), "no move to decode before"),
        (guard("flip_resident_guard", False, 9, 8, "local/1"), "local/1 has 9 streams, it may have 8 to move"),
        (guard("ejected", False, 1, 0, "local/1"), "local/1 is ejected"),
        (guard("departure", False, 1, 0), "a departure to the other role is open"),
        (guard("departure", False, 3, 12), "the departure has been open for 3 s of 12 s"),
        (guard("gain", False, 0.05, 0.1), "the score gets better by 0.05, a move needs 0.1"),
        (guard("confirmations", False, 1, 2), "found by 1 of 2 evaluations in a row"),
        (guard("of a newer router", False, 1, 2, "local/1"), "of a newer router (local/1): 1, limit 2"),
    ],
)
def test_a_guard_in_words(seen: dict[str, Any], words: str) -> None:
    assert guard_words(seen, decision(1, "held")) == words


def test_a_broken_floor_is_told_as_it_is() -> None:
    broken = decision(1, "held", trigger="floor")
    assert guard_words(guard("min_prefill", False, 0, 1), broken) == "prefill has 0 engines, its floor is 1"


def test_a_refusal_names_all_that_held_and_else_the_reason() -> None:
    held = [guard("hold", False, 1, 0), guard("pin", True, 0, 0, "local/1"), guard("min_decode", False, 0, 1)]
    words = refusal(decision(1, "held", guards=held), "noon")
    assert words == "moves are on hold: noon; decode would have 0 engines, its floor is 1"
    assert refusal(decision(2, "stay", guards=[])) == "reason 2"


def test_why_says_so_when_nothing_happened() -> None:
    assert explain([], [], 0.0) == ["no engine has been moved yet", "", "nothing better was held back since"]


def test_status_and_why_say_what_is_learned_and_what_waits_for_it() -> None:
    def engine(name: str, *samples: int) -> dict[str, Any]:
        names = ("prefill_samples", "decode_samples", "needed_samples")
        return {"id": name, "learning": dict(zip(names, samples, strict=True)) if samples else None}

    assert learning_lines({"engines": [engine("a"), engine("b")]}) == []
    few = learning_lines({"engines": [engine("a", 3, 9, 8), engine("b"), engine("c", 3, 9, 8)]})
    assert few[0].startswith("learning  a, c: no profile; learned from 3 prefill and 9 decode samples")
    assert "admission is open until there are 8 of each" in few[0]
    assert "narwhal profile" in few[1]
    enough = learning_lines({"engines": [engine("a", 8, 9, 8)]})
    assert "admission is open" not in enough[0]


def test_status_is_one_page() -> None:
    engine = {
        "id": "local/0", "url": "http://127.0.0.1:1", "role": "prefill", "pin": "prefill", "generation": "g",
        "state": "live", "residents": 3, "prefills": 2, "kv_tokens": 900, "backlog_s": 1.25, "occupancy": 0.5,
    }  # fmt: skip
    state = {
        "fleet": "dev", "model": "simulated", "pid": 77, "uptime_s": 3700.0, "epoch": 4, "policy": "reactive",
        "hold": {"on": True, "reason": "noon"}, "split": {"prefill": 1, "decode": 3},
        "load": {"prefill": 0.83, "decode": None}, "queue": {"requests": 7, "oldest_s": 0.5}, "seats_waiting": 1,
        "counts": {"offered": 9, "served": 8}, "attainment_60s": None, "engines": [engine], "workers": [],
        "went_on": {"retried": 0, "continued": 1}, "degraded": "",
    }  # fmt: skip
    assert "degraded" not in "\n".join(status_lines(state))
    followed = {**state, "lease": {**LEASE, "standing": "standby"}, "engines": [{**engine, "state": "unadmitted"}]}
    unheard = "\n".join(status_lines({**followed, "hold": {"on": False}}))
    assert "split     not heard yet\n" in unheard
    assert "degraded" not in unheard
    followed = {**followed, "hold": {"on": False}, "lease": {**followed["lease"], "lag_s": 0.4}}
    assert "split     as the router that leads has it\n" in "\n".join(status_lines(followed))
    text = "\n".join(status_lines(state))
    assert "worker" not in text
    worker = {"pid": 4711, "connections": 12, "requests": 5, "streams": 4}
    assert status_lines({**state, "workers": [worker]})[-1].split() == ["pid", "4711", "12", "5", "4"]
    assert "up 1 h 1 min" in text
    assert "1 prefill, 3 decode · moves are on hold: noon" in text
    assert "prefill 0.83, decode unknown" in text
    assert "7 waiting, the oldest for 0.5 s; 1 wait" in text
    assert "9 offered, 8 served" in text
    assert "engines failed requests: 1 stream went on elsewhere" in text
    assert "pid 77, up" in text
    assert "local/0       prefill* live" in text


def test_what_is_degraded_is_said_in_one_line() -> None:
    def engine(number: int, state: str, reason: str = "", **more: Any) -> dict[str, Any]:
        return {"id": f"local/{number}", "state": state, "reason": reason, **more}

    out = [engine(number, "ejected", "no answer") for number in range(5)]
    assert degraded_lines({"degraded": "", "engines": [engine(0, "live")]}) == []
    assert degraded_lines({"degraded": "no prefill engine is live", "engines": out[:2]}) == [
        "degraded  no prefill engine is live; local/0 is ejected: no answer; local/1 is ejected: no answer"
    ]
    lease = {**LEASE, "standing": "standby", "proven": False, "follow_trouble": "refused"}
    assert degraded_lines({"degraded": "", "engines": [], "lease": lease}) == [
        "degraded  no router is followed: refused"
    ]
    assert degraded_lines({"degraded": "", "engines": [], "lease": {**lease, "standing": "leader"}}) == [
        "degraded  the router cannot prove that it leads"
    ]
    [line] = degraded_lines({"degraded": "", "engines": out})
    assert line.endswith("; local/2 is ejected: no answer; 2 more, see narwhal why")
    drain = {"residents": 0, "unread": 0, "abandoned": 0, "deadline_s": None, "stays": True}
    gone = engine(1, "ejected", "connection refused", drain=drain)
    assert degraded_lines({"degraded": "", "engines": [gone]}) == [
        "degraded  local/1 is drained, its process is stopped"
    ]
    assert drain_lines({"engines": [gone]}) == [
        "local/1 is drained, its process is stopped; it stays so until narwhal readmit"
    ]


LED = "edge-1 (primary) leads"
LEASE = {
    "standing": "leader",
    "proven": True,
    "epoch": 7,
    "leader_is": "primary",
    "leader": "edge-1",
    "trouble": "",
    "followers": 1,
    "lag_s": None,
    "follow_trouble": "",
}


@pytest.mark.parametrize(
    ("news", "says", "well"),
    [
        ({}, "leads (primary), term 7; 1 follows", True),
        ({"followers": 0}, "leads (primary), term 7; nobody follows", True),
        (
            {"proven": False, "trouble": "no etcd member answers"},
            "leads (primary) without proof (no etcd member answers): roles, hold and engines' lives are frozen; "
            "1 follows",
            False,
        ),
        (
            {"standing": "standby", "proven": False, "lag_s": 0.42},
            f"stands by; {LED}, heard 0.4 s ago",
            True,
        ),
        (
            {"standing": "standby", "proven": False, "follow_trouble": "Connection refused", "leader": ""},
            "stands by; nobody leads, not heard yet; Connection refused",
            False,
        ),
        (
            {"standing": "standby", "proven": False, "trouble": "nobody leads: /lease.json is no role map"},
            "stands by; nobody leads: /lease.json is no role map",
            False,
        ),
        (
            {"standing": "deposed", "proven": False, "lag_s": 1.0},
            f"was deposed; {LED}, heard 1.0 s ago",
            True,
        ),
    ],
)
def test_what_a_router_says_of_its_lease(news: dict[str, object], says: str, well: bool) -> None:
    state = {"lease": {**LEASE, **news}}
    assert lease_lines(state) == [f"lease     {says}"]
    assert lease_is_well(state) is well


def test_a_router_that_is_alone_says_nothing_of_a_lease() -> None:
    assert lease_lines({"lease": None}) == []
    assert lease_is_well({"lease": None})


@pytest.mark.parametrize(
    ("state", "residents", "unread", "expected"),
    [
        ("drained", 0, 0, True),
        ("draining", 0, 1, False),
        ("suspected", 0, 0, False),
        ("ejected", 1, 0, False),
        ("ejected", 0, 1, False),
        ("ejected", 0, 0, True),  # it hangs, say: a wait for it to be drained would never end
        ("unadmitted", 0, 0, True),
    ],
)
def test_an_engine_may_stop_when_it_is_drained_or_out_with_nothing_left(
    state: str, residents: int, unread: int, expected: bool
) -> None:
    drain = {"residents": residents, "unread": unread, "abandoned": 0, "deadline_s": None}
    assert may_stop({"id": "local/1", "state": state, "reason": "", "drain": drain}) is expected


def test_an_engine_that_is_out_and_not_drained_may_not_stop() -> None:
    assert not may_stop({"id": "local/1", "state": "ejected", "reason": "", "drain": None})
