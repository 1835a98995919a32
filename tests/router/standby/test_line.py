"""What a follower is sent: small, whole, and enough to go on from."""

import random

import msgspec
import pytest

from narwhal.control.copies import MOST_REMEMBERED
from narwhal.control.demand import History
from narwhal.control.snapshot import Cut
from narwhal.control.succession import succeed
from narwhal.router.standby.line import NAMES, FollowLine, pieces, state_of
from tests.control.driving import Driver

MOST_BYTES = 1_000_000
ENGINES = 64


def busy_fleet() -> Driver:
    """64 engines, every pair of them used, and a minute of 400 requests a second."""
    driver = Driver("p" * (ENGINES // 2) + "d" * (ENGINES // 2))
    rng = random.Random(1)
    control = driver.control
    for producer in control.pool.engines:
        for consumer in control.pool.engines:
            if producer != consumer:
                link = control.health.links.link(producer, consumer)
                link.handoffs, link.tokens, link.seconds = (
                    rng.randrange(10**6),
                    rng.randrange(10**9),
                    rng.random() * 1e5,
                )
    for number in range(24_000):
        t = number / 400
        control.demand.arrived(t, rng.random())
        control.demand.entered_decode(t, rng.random())
        control.demand.left_decode(t, rng.random(), t - 1.0)
    return driver


def test_a_whole_line_of_64_engines_is_below_a_megabyte() -> None:
    driver = busy_fleet()
    made = pieces(Cut(driver.control, residents=False), lambda: None)
    line = FollowLine(60.0, "1", 0.25, {name: msgspec.Raw(piece) for name, piece in made.items()})
    text = msgspec.json.encode(line)
    assert len(text) < MOST_BYTES
    read = msgspec.json.decode(text, type=FollowLine)
    assert read.pieces.keys() == NAMES
    after = succeed(driver.settings, state_of(read.pieces), 1000.0)
    assert after.demand.prefill_load(1060.0) == pytest.approx(driver.control.demand.prefill_load(60.0), rel=1e-3)
    assert after.demand.survival(1060.0) == pytest.approx(driver.control.demand.survival(60.0), rel=1e-3)
    assert after.pool.engines["e0"].links["e1"].handoffs == driver.pool.engines["e0"].links["e1"].handoffs


@pytest.mark.parametrize("events", [0, 1, 4097, 9000, MOST_REMEMBERED + 1, 3 * MOST_REMEMBERED + 1])
def test_what_is_remembered_of_a_history_gives_its_rates(events: int) -> None:
    rng = random.Random(events)
    history, again = History(30.0), History(1.0)
    for number in range(events):
        history.add(number * 60.0 / events, rng.random() - 0.2)
    end_t, ages, values = history.remembered().values(MOST_REMEMBERED)
    assert len(ages) == len(values) <= MOST_REMEMBERED
    again.remember(30.0, (end_t - age for age in ages), values)
    for span_s in (1.0, 10.0, 30.0):
        expected = history.since(end_t - span_s)
        found = again.since(end_t - span_s)
        assert found.total == pytest.approx(expected.total, rel=1e-3, abs=1.0 if events > MOST_REMEMBERED else 1e-3)
        if events <= MOST_REMEMBERED:
            assert found.events == expected.events
            assert found.squares == pytest.approx(expected.squares, rel=1e-3)
