"""What `narwhal status` ends with: the last move, pairs that are out, and what to type now."""

from typing import Any

import pytest

from narwhal.diagnose import incident_lines
from tests.diagnose.test_words import decision


def state(standing: str = "live", *, hold: bool = False, lease: Any = None) -> dict[str, Any]:
    engines = [{"id": "gpu-1/0", "state": standing}]
    return {"engines": engines, "hold": {"on": hold, "reason": ""}, "lease": lease}


OUT = {"links": [{"producer": "a/0", "consumer": "b/0", "state": "out", "reason": "two handoffs failed"}]}
LOST = {"standing": "leader", "proven": False, "trouble": "no answer"}


@pytest.mark.parametrize(
    ("seen", "links", "step"),
    [
        (state("ejected", lease=LOST), OUT, "narwhal logs router; is the lease's store up, and the other router?"),
        (state("ejected"), OUT, "narwhal why; narwhal logs gpu-1/0"),
        (state(hold=True), OUT, "narwhal links; narwhal why"),
        (state("drained", hold=True), {}, "narwhal readmit gpu-1/0 brings it back"),
        (state(hold=True), {}, "narwhal unhold lets roles move again"),
    ],
)
def test_the_next_step_is_about_the_gravest(seen: dict[str, Any], links: dict[str, Any], step: str) -> None:
    assert incident_lines(seen, {}, links)[-1] == f"next      {step}"


def test_when_all_is_well_only_the_last_move_is_told() -> None:
    moves = {"now_t": 60.0, "moves": [decision(1, "moved"), decision(3, "moved", guards=[]), decision(4, "held")]}
    assert incident_lines(state(), moves, {}) == ["last move local/1 decode → prefill, 30 s ago (decision 3): reason 3"]
    assert incident_lines(state(), {}, {}) == []
    assert incident_lines(state(), {}, OUT)[0] == "pair out  a/0 > b/0: two handoffs failed"
