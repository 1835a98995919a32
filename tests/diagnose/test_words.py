from typing import Any

from narwhal.diagnose import explain, status_lines


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
    text = "\n".join(explain([decision(1, "moved"), decision(2, "moved")], [decision(1, "held"), decision(3, "held")]))
    assert "last move: decision 2 at 20.0 s" in text
    assert "because reason 2" in text
    assert "held back since: 1 decision, the latest" in text
    assert "held   cooldown_s (local/1): 3, limit 10" in text
    assert "2P2D" in text
    assert "occupancy 0.42" in text


def test_why_says_so_when_nothing_happened() -> None:
    assert explain([], []) == ["no engine has been moved yet", "", "nothing better was held back since"]


def test_status_is_one_page() -> None:
    engine = {
        "id": "local/0", "url": "http://127.0.0.1:1", "role": "prefill", "pin": "prefill", "generation": "g",
        "state": "live", "residents": 3, "prefills": 2, "kv_tokens": 900, "backlog_s": 1.25, "occupancy": 0.5,
    }  # fmt: skip
    state = {
        "fleet": "dev", "model": "simulated", "uptime_s": 3700.0, "epoch": 4, "policy": "reactive",
        "hold": {"on": True, "reason": "noon"}, "split": {"prefill": 1, "decode": 3},
        "load": {"prefill": 0.83, "decode": None}, "queue": {"requests": 7, "oldest_s": 0.5}, "seats_waiting": 1,
        "counts": {"offered": 9, "served": 8}, "attainment_60s": None, "engines": [engine],
    }  # fmt: skip
    text = "\n".join(status_lines(state))
    assert "up 1 h 1 min" in text
    assert "1 prefill, 3 decode · moves are on hold: noon" in text
    assert "prefill 0.83, decode unknown" in text
    assert "7 waiting, the oldest for 0.5 s; 1 wait" in text
    assert "9 offered, 8 served" in text
    assert "local/0       prefill* live" in text
