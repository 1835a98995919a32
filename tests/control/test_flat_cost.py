"""What a request costs control does not depend on how many others are resident: lines are counted, not time."""

import gc
import sys
from types import FrameType
from typing import Any, NoReturn

import msgspec
import pytest

from narwhal.control import Control
from narwhal.control.events import (
    AnyEvent,
    EngineJoined,
    EngineUp,
    FirstToken,
    PrefillFinished,
    RequestArrived,
    RequestFinished,
    TokensObserved,
)
from narwhal.control.state import Request
from narwhal.fleet.model import Slo
from tests.control.driving import CURVES, settings

ROOMY = msgspec.structs.replace(
    CURVES, d1_s=1e-7, b_s=1e-6, kv_capacity_tokens=10**9, max_num_seqs=10**6, chunk_tokens=10**6
)
ENGINES = 8


class NeverWalked(dict[int, Request]):
    """Requests that may be looked up by number, and by nothing else."""

    def _walked(self) -> NoReturn:
        raise AssertionError("all requests were looked through")

    __iter__ = keys = values = items = _walked


def life(number: int, t: float) -> list[AnyEvent]:
    """A streamed request from its arrival to its end."""
    return [
        RequestArrived(t, number, 100, 50),
        PrefillFinished(t + 0.01, number, 100),
        FirstToken(t + 0.02, number),
        TokensObserved(t + 0.03, (number,), (5,)),
        RequestFinished(t + 0.04, number, 5, 100),
    ]


def crowded(residents: int, admission: str) -> Control:
    """Half prefill, half decode engines, with streams on the latter."""
    control = Control(settings(serving={"admission": admission}, slo=Slo(ttft_s=2.0, tpot_s=0.05)))
    for number in range(ENGINES):
        role = "prefill" if number % 2 == 0 else "decode"
        control.handle(EngineJoined(0.0, f"e{number}", role, ROOMY, True))
        control.handle(EngineUp(0.0, f"e{number}", "life-1"))
    for producer, consumer in control.health.links.pairs():
        control.health.links.link(producer, consumer)  # the first handoff of a pair makes it, whatever is resident
    for number in range(residents):
        for event in life(number, 1.0)[:3]:
            control.handle(event)
    assert sum(engine.streams for engine in control.pool.engines.values()) == residents
    control.pool.requests = NeverWalked(control.pool.requests)
    return control


def lines(control: Control, events: list[AnyEvent]) -> int:
    """Lines of Python that control runs for some events."""
    count = 0

    def trace(frame: FrameType, what: str, argument: Any) -> Any:
        nonlocal count
        count += what == "line"
        return trace

    before = sys.gettrace()
    gc.disable()  # what a collection calls would be counted too
    sys.settrace(trace)
    try:
        for event in events:
            control.handle(event)
    finally:
        sys.settrace(before)
        gc.enable()
    return count


@pytest.mark.parametrize("admission", ["open", "predictive"])
def test_a_request_costs_the_same_beside_32_and_beside_2000_others(admission: str) -> None:
    few, many = (lines(crowded(residents, admission), life(9999, 2.0)) for residents in (32, 2000))
    assert many == few
    assert few > 100  # something was counted
