"""Prefill-heavy, decode-heavy, prefill-heavy on four real engine processes: each turn reverses the split in full.

How long a reversal takes is a figure of `bench/`; here it must happen before the next turn, in the right order,
without thrash and without a failed request. `NARWHAL_TEST_TURNING_SECONDS=330` plays it in full length.
"""

import os

import pytest

from narwhal.dev.demo import View, run_demo
from narwhal.dev.traffic import DECODE_HEAVY, PREFILL_HEAVY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
SECONDS = float(os.environ.get("NARWHAL_TEST_TURNING_SECONDS", "75"))
WANTED = {PREFILL_HEAVY: (3, 1), DECODE_HEAVY: (1, 3)}
MOVES_A_TURN = 6
"""A reversal takes two; three times as many for one turn would be thrash."""


def test_the_split_is_reversed_after_each_turn() -> None:
    splits: list[tuple[str, tuple[int, int]]] = []

    def see(view: View) -> None:
        if view.state is not None and view.phase in WANTED:
            split = view.state["split"]
            splits.append((view.phase, (split["prefill"], split["decode"])))

    report = run_demo(seconds=SECONDS, seed=3, engines=4, say=print, show=see)
    reached = [phase for phase, split in splits if split == WANTED[phase]]
    in_order = [phase for before, phase in zip([None, *reached], reached, strict=False) if phase != before]
    assert in_order == [PREFILL_HEAVY, DECODE_HEAVY, PREFILL_HEAVY]
    assert all(turn.moves <= MOVES_A_TURN for turn in report.turns), report.moves
    assert all(prefill >= 1 and decode >= 1 for _, (prefill, decode) in splits)
    for fleet in (report.moving, report.static):
        assert (fleet.failed, fleet.cut) == (0, 0)
