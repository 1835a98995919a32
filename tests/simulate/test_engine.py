"""The engine model against closed forms, and leaps against a stepper that knows no leaps."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from narwhal.control import Curves
from narwhal.simulate.engine import Engine, Leap
from narwhal.simulate.request import Request

CURVES = Curves(
    t_min_s=0.0,
    a_s=0.004,
    b_s=5.5e-5,
    c_s=6.5e-10,
    d0_s=0.008,
    d1_s=3e-5,
    d2_s=5.6e-8,
    transfer_t0_s=0.005,
    transfer_bytes_per_s=25e9,
    kv_bytes_per_token=131072,
    kv_capacity_tokens=400_000,
    max_num_seqs=256,
    chunk_tokens=2048,
)


def land(engine: Engine, t: float) -> None:
    """Transfers that take no time."""
    for request in engine.taken:
        engine.arrived(request)
    engine.taken.clear()
    if engine.idle:
        engine.start(t)
    elif engine.ready or engine.prefills:
        engine.interrupt(t)


def run(engine: Engine, arrivals: list[tuple[float, Request, str]], *, leap: bool = True) -> dict[int, list[float]]:
    """Serve arrivals; times of prefill, first and last token by request. `leap` off: one iteration at a time."""
    times: dict[int, list[float]] = {}
    arrivals = sorted(arrivals, key=lambda item: item[0])
    while arrivals or not engine.idle:
        if arrivals and arrivals[0][0] <= engine.turn_t:
            t, request, leg = arrivals.pop(0)
            if leg == "decode":
                engine.add_stream(request, t)
            else:
                engine.add_prompt(request, t, whole=leg == "whole")
            land(engine, t)
            if not leap:
                engine.interrupt(t)
            continue
        t = engine.turn_t
        ended = engine.turn()
        for kind in (ended.prefilled, ended.first, ended.finished):
            for request in kind:
                times.setdefault(request.id, []).append(t)
        land(engine, t)
        if not leap and engine.leap is not None:
            engine.interrupt(t)
    return times


@pytest.mark.parametrize("prompt", [1, 1000, 2048])
def test_a_prompt_alone_takes_what_its_curve_says(prompt: int) -> None:
    times = run(Engine("e/0", CURVES), [(1.0, Request(0, 1.0, prompt, 10), "prefill")])
    assert times[0] == [pytest.approx(1.0 + CURVES.prefill_s(prompt))]


def test_a_long_prompt_pays_the_constant_part_for_each_chunk() -> None:
    times = run(Engine("e/0", CURVES), [(0.0, Request(0, 0.0, 5000, 10), "prefill")])
    assert times[0] == [pytest.approx(CURVES.prefill_s(5000) + 2 * CURVES.a_s)]


def test_a_short_prompt_takes_at_least_the_floor() -> None:
    engine = Engine("e/0", replace(CURVES, t_min_s=0.02))
    assert run(engine, [(0.0, Request(0, 0.0, 10, 10), "prefill")])[0] == [pytest.approx(0.02)]


def test_prompts_are_served_first_in_first_out_and_share_a_chunk() -> None:
    engine = Engine("e/0", CURVES)
    times = run(engine, [(0.0, Request(n, 0.0, 1500, 10), "prefill") for n in range(3)])
    # the first starts alone, at once; the other two share the chunk that follows and the one after
    assert times[0][0] < times[1][0] < times[2][0]
    assert times[0] == [pytest.approx(CURVES.prefill_s(1500))]


def test_a_batch_decodes_at_the_interval_of_its_size_and_kv() -> None:
    engine = Engine("e/0", CURVES)
    times = run(engine, [(0.0, Request(n, 0.0, 1000, 11), "decode") for n in range(4)])
    alone = CURVES.interval_s(1, 1000)  # the first has the engine for one iteration
    kv = [4001 + 4 * step for step in range(10)]
    assert times[0] == [pytest.approx(alone), pytest.approx(alone + sum(CURVES.interval_s(4, k) for k in kv))]


def test_decode_is_slower_while_a_prompt_is_computed() -> None:
    alone = run(Engine("e/0", CURVES), [(0.0, Request(0, 0.0, 1000, 100), "decode")])[0][-1]
    engine = Engine("e/0", CURVES)
    both = run(engine, [(0.0, Request(0, 0.0, 1000, 100), "decode"), (0.1, Request(1, 0.1, 4000, 1), "prefill")])
    assert both[0][-1] > alone + 4000 * CURVES.b_s - 3 * CURVES.d0_s


def test_streams_wait_for_a_sequence_in_order() -> None:
    engine = Engine("e/0", replace(CURVES, max_num_seqs=2))
    times = run(engine, [(0.0, Request(n, 0.0, 100, 10), "decode") for n in range(4)])
    assert times[2][0] >= min(times[0][-1], times[1][-1])
    assert times[3][0] >= times[2][0]
    assert (engine.seqs, engine.held_tokens, engine.kv_tokens) == (0, 0, 0)


def test_a_prompt_waits_for_kv_until_a_handoff_was_fetched() -> None:
    engine = Engine("e/0", replace(CURVES, kv_capacity_tokens=1500))
    times = run(engine, [(0.0, Request(0, 0.0, 1000, 5), "prefill"), (0.0, Request(1, 0.0, 1000, 5), "prefill")])
    assert 1 not in times
    engine.release(1000, 5.0)
    assert engine.start(5.0)
    assert [request.id for request in engine.turn().prefilled] == [1]


def test_a_batch_that_outgrows_the_kv_preempts_its_youngest_and_serves_it_in_the_end() -> None:
    engine = Engine("e/0", replace(CURVES, kv_capacity_tokens=1000))
    times = run(engine, [(0.001 * n, Request(n, 0.0, 300, 200), "decode") for n in range(3)])
    assert engine.preemptions > 0
    assert times[0][-1] < times[2][-1]
    assert {number: len(stamps) >= 2 for number, stamps in times.items()} == {0: True, 1: True, 2: True}
    assert (engine.seqs, engine.held_tokens, engine.kv_tokens) == (0, 0, 0)


def test_a_request_with_both_phases_on_one_engine_has_its_first_token_when_its_prefill_ends() -> None:
    times = run(Engine("e/0", CURVES), [(0.0, Request(0, 0.0, 1000, 3), "whole")])
    first = CURVES.prefill_s(1000)
    last = first + CURVES.interval_s(1, 1001) + CURVES.interval_s(1, 1002)
    assert times[0] == [pytest.approx(first), pytest.approx(last)]


def test_an_aborted_stream_gives_back_what_it_held() -> None:
    engine = Engine("e/0", CURVES)
    request = Request(0, 0.0, 100, 1000)
    engine.add_stream(request, 0.0)
    land(engine, 0.0)
    engine.interrupt(1.0)
    engine.remove(request, 1.0)
    engine.turn()
    assert not engine.start(engine.turn_t)
    assert (engine.seqs, engine.held_tokens, engine.kv_tokens) == (0, 0, 0)


@given(
    interval=st.floats(1e-3, 1.0),
    growth=st.floats(0.0, 1e-3),
    count=st.integers(1, 3000),
    share=st.floats(0.0, 1.2),
)
def test_a_leap_counts_its_iterations_at_any_time(interval: float, growth: float, count: int, share: float) -> None:
    leap = Leap(7.0, interval, growth, count)
    t = 7.0 + share * (leap.end_t(count) - 7.0)
    ended = leap.ended(t)
    assert ended == sum(leap.end_t(number) <= t for number in range(1, count + 1))
    if share > 0:
        leap.cut(t)
        assert leap.end_t(leap.count) >= t or leap.count == count
        assert leap.count == 1 or leap.end_t(leap.count - 1) < t


arrival = st.tuples(
    st.floats(0, 3).map(lambda t: round(t, 3)),
    st.integers(1, 3000),
    st.integers(1, 120),
    st.sampled_from(["prefill", "decode", "whole"]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(arrival, min_size=1, max_size=25), st.sampled_from([4000, 20_000, 400_000]), st.sampled_from([3, 256]))
def test_leaping_equals_stepping(arrivals: list[tuple[float, int, int, str]], kv: int, seqs: int) -> None:
    curves = replace(CURVES, kv_capacity_tokens=kv, max_num_seqs=seqs)

    def serve(*, leap: bool) -> dict[int, list[float]]:
        work = [(t, Request(n, t, prompt, output), leg) for n, (t, prompt, output, leg) in enumerate(arrivals)]
        return run(Engine("e/0", curves), work, leap=leap)

    leaping, stepping = serve(leap=True), serve(leap=False)
    assert leaping.keys() == stepping.keys()
    for number, stamps in leaping.items():
        assert len(stamps) == len(stepping[number])
        assert all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(stamps, stepping[number], strict=True))
