"""Which answers count as in time."""

import pytest

from narwhal.fleet.model import Slo
from narwhal.router.slo import within

SLO = Slo(ttft_s=2.0, tpot_s=0.05)


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "whole_tokens", "met"),
    [
        (2.0, 0.05, 0, True),
        (2.1, 0.05, 0, False),
        (2.0, 0.051, 0, False),
        (None, None, 0, True),  # it ended before a token came
        (6.9, None, 100, True),  # in one piece: 2 s, and 99 tokens more
        (7.0, None, 100, False),
        (2.1, None, 1, False),
    ],
)
def test_an_answer_in_one_piece_may_take_as_long_as_its_stream(
    ttft_s: float | None, tpot_s: float | None, whole_tokens: int, met: bool
) -> None:
    assert within(SLO, 100, ttft_s, tpot_s, whole_tokens=whole_tokens) is met
