"""What is wrong with engines and pairs, in words."""

from typing import Any

from narwhal.diagnose import links_lines, standing_lines

LINK: dict[str, Any] = {
    "producer": "local/0", "consumer": "local/2", "in_use": True, "state": "in", "reason": "", "since_s": None,
    "handoffs": 12, "bytes": 3_400_000, "mean_s": 0.0123, "failures": 0, "canaries": ["right", "right"],
    "tried_s": 4.2, "transport": "pull",
}  # fmt: skip


def engine(state: str, **more: Any) -> dict[str, Any]:
    return {"id": "local/1", "state": state, "probation": False, "reason": "", "since_s": 5.0, **more}


def test_a_well_fleet_has_nothing_to_tell() -> None:
    joined = {"t": 1.0, "engine": "local/1", "change": "joined", "reason": "as decode"}
    assert standing_lines({"degraded": "", "engines": [engine("live")]}, [joined], 9.0) == []


def test_why_an_engine_is_out_and_what_led_there() -> None:
    state = {"degraded": "no prefill engine is live", "engines": [engine("ejected", reason="connection refused")]}
    changes = [
        {"t": 4.0, "engine": "local/1", "change": "questioned", "reason": "not told here"},
        {"t": 5.0, "engine": "local/1", "change": "ejected", "reason": "connection refused"},
        {"t": 6.0, "producer": "local/0", "consumer": "local/2", "change": "out", "reason": "wrong KV"},
    ]
    assert standing_lines(state, changes, 9.0) == [
        "degraded: no prefill engine is live",
        "local/1 is ejected since 5 s: connection refused",
        "",
        "what changed, the latest last:",
        "  4 s ago  local/1 ejected: connection refused",
        "  3 s ago  pair local/0 > local/2 out: wrong KV",
    ]


def test_a_slow_engine_is_on_probation() -> None:
    state = {"degraded": "", "engines": [engine("live", probation=True, reason="slow")]}
    assert standing_lines(state, [], 9.0) == ["local/1 is on probation since 5 s: slow"]


def test_the_matrix_is_a_table() -> None:
    bad = {**LINK, "producer": "local/1", "in_use": False, "state": "out", "reason": "wrong KV", "canaries": []}
    document = {"canary": {"armed": True, "prompt_tokens": 56}, "links": [LINK, bad]}
    lines = links_lines(document)
    assert lines[0] == "canary    armed, 56 tokens"
    assert lines[3].split() == [
        "local/0",
        "local/2",
        "in",
        "12",
        "3.4",
        "MB",
        "12.3",
        "ms",
        "0",
        "4",
        "s",
        "right",
        "right",
        "pull",
    ]
    assert lines[4].split()[:3] == ["local/1", "local/2*", "out"]
    assert lines[5:] == ["    wrong KV", "* not in use by the present roles"]
    empty = links_lines({"canary": {"armed": False, "prompt_tokens": 0}, "links": []})
    assert empty == ["canary    not armed: KV is not compared", "no pair yet"]
