from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.engine.simulated.request import Phase, Sequence, Source
from narwhal.engine.simulated.scheduler import Scheduler
from narwhal.engine.simulated.timing import Load, step_s
from narwhal.fleet import Profile

BLOCK_TOKENS = 4
BLOCKS = 16


def profile(**changes: object) -> Profile:
    values: dict[str, object] = {
        "kind": "Profile",
        "name": "test",
        "source": "invented for this test",
        "prefill": {"t_min_s": 0.02, "a_s": 0.01, "b_s_per_token": 0.001, "c_s_per_token2": 0.0001},
        "decode": {"d0_s": 0.03, "d1_s": 0.002, "d2_s": 0.00001},
        "kv_bytes_per_token": 1000,
        "kv_capacity_tokens": BLOCKS * BLOCK_TOKENS,
        "block_tokens": BLOCK_TOKENS,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 8,
    }
    return Profile.model_validate(values | changes)


def scheduler(**changes: object) -> Scheduler:
    timing = profile(**changes)
    return Scheduler(
        timing,
        max_num_seqs=timing.max_num_seqs,
        max_num_batched_tokens=timing.max_num_batched_tokens,
        kv_lease_s=30.0,
    )


@dataclass
class Run:
    """Drives a scheduler until nothing is left, and keeps what came out."""

    scheduler: Scheduler
    now: float = 0.0
    tokens: dict[str, list[int]] = field(default_factory=dict)
    reasons: dict[str, str | None] = field(default_factory=dict)
    first_t: dict[str, float] = field(default_factory=dict)
    work: list[list[tuple[str, int]]] = field(default_factory=list)

    def step(self) -> bool:
        step = self.scheduler.begin(self.now)
        self.work.append([(sequence.id, count) for sequence, count in step.work])
        self.now += step.duration_s
        for token in self.scheduler.finish(step, self.now):
            name = token.sequence.id
            self.tokens.setdefault(name, []).append(token.token)
            self.first_t.setdefault(name, self.now)
            self.reasons[name] = token.finish_reason
        return bool(step.work or step.fetches)

    def all(self, *sequences: Sequence) -> "Run":
        for sequence in sequences:
            self.scheduler.add(sequence, self.now)
        while self.step():
            pass
        return self


def answer(prompt: Items[int], max_tokens: int = 6, **changes: object) -> list[int]:
    """What a prompt gets on an engine of its own."""
    sequence = Sequence("alone", list(prompt), max_tokens, **changes)  # type: ignore[arg-type]
    return Run(scheduler(kv_capacity_tokens=4000, max_num_batched_tokens=4000)).all(sequence).tokens["alone"]


def test_a_prompt_alone_takes_what_the_curve_says() -> None:
    run = Run(scheduler()).all(Sequence("a", [1, 2, 3, 4, 5, 6, 7], 1))
    assert run.first_t["a"] == pytest.approx(0.01 + 7 * 0.001 + 49 * 0.0001)


def test_a_short_prompt_takes_the_least_time() -> None:
    assert Run(scheduler()).all(Sequence("a", [1], 1)).now == pytest.approx(0.02)


def test_a_decode_step_is_as_long_as_batch_and_kv_make_it() -> None:
    load = Load()
    load.add_stream(100)
    load.add_stream(50)
    assert step_s(profile(), load) == pytest.approx(0.03 + 2 * 0.002 + 150 * 0.00001)


def test_a_mixed_step_takes_both_costs_and_reads_the_weights_once() -> None:
    load = Load()
    load.add_stream(100)
    load.add_chunk(8, 4)
    weights_s = 0.03 - 0.01  # more than 4 tokens at 0.001
    assert step_s(profile(), load) == pytest.approx(0.01 + weights_s + (144 - 64) * 0.0001 + 0.002 + 100 * 0.00001)


def test_a_long_prompt_is_prefilled_in_chunks() -> None:
    run = Run(scheduler()).all(Sequence("a", list(range(20)), 2))
    assert run.work[:4] == [[("a", 8)], [("a", 8)], [("a", 4)], [("a", 1)]]


def test_streams_go_on_while_a_prompt_is_prefilled() -> None:
    run = Run(scheduler())
    run.scheduler.add(Sequence("a", [1, 2, 3], 9), 0.0)
    run.step()
    run.scheduler.add(Sequence("b", list(range(20)), 1), run.now)
    run.step()
    assert run.work[-1] == [("a", 1), ("b", 7)]


def test_no_more_than_max_num_seqs_run() -> None:
    run = Run(scheduler(max_num_seqs=2))
    for name in "abc":
        run.scheduler.add(Sequence(name, [ord(name)], 3), 0.0)
    run.step()
    assert [len(run.scheduler.running), len(run.scheduler.waiting)] == [2, 1]


def test_a_known_prefix_is_not_computed_again() -> None:
    prompt = list(range(10))
    run = Run(scheduler()).all(Sequence("a", prompt, 1))
    run.all(Sequence("b", prompt, 1))
    assert run.work[-2] == [("b", 2)]
    assert run.scheduler.counts.cached_tokens == 8
    assert run.tokens["a"] == run.tokens["b"]


def test_another_cache_salt_shares_no_prefix() -> None:
    run = Run(scheduler()).all(Sequence("a", list(range(8)), 1, cache_salt="one"))
    run.all(Sequence("b", list(range(8)), 1, cache_salt="two"))
    assert run.scheduler.counts.cached_tokens == 0
    assert run.tokens["a"] == run.tokens["b"]


def test_without_room_the_newest_is_preempted_and_its_answer_stays_the_same() -> None:
    run = Run(scheduler(kv_capacity_tokens=24))
    prompts = {"a": [1, 2, 3, 4, 5, 6], "b": [7, 8, 9, 10, 11, 12]}
    run.all(*(Sequence(name, prompt, 14) for name, prompt in prompts.items()))
    assert run.scheduler.counts.preemptions > 0
    assert run.tokens == {name: answer(prompt, 14) for name, prompt in prompts.items()}


def test_an_answer_ends_at_a_stop_token_but_not_before_min_tokens() -> None:
    full = answer([1, 2, 3], 8)
    run = Run(scheduler()).all(Sequence("a", [1, 2, 3], 8, stop_tokens=frozenset([full[2]])))
    assert (run.tokens["a"], run.reasons["a"]) == (full[:3], "stop")
    late = answer([1, 2, 3], 8, stop_tokens=frozenset(full), min_tokens=5)
    assert late == full[:5]


def test_an_aborted_sequence_frees_its_blocks() -> None:
    run = Run(scheduler())
    sequence = Sequence("a", list(range(12)), 5)
    run.scheduler.add(sequence, 0.0)
    run.step()
    run.scheduler.abort(sequence)
    assert run.scheduler.pool.free_count == BLOCKS
    assert not run.scheduler.busy


# --- handoff


def hand_over(producer: Run, consumer: Run, prompt: list[int], *, prepare: bool = True) -> None:
    """Both legs of a request named p, then d."""
    if prepare:
        producer.all(Sequence("p", prompt, 1, keep_kv=True))
    pin = producer.scheduler.pins.get("p")
    blocks = tuple(pin.blocks) if pin else (0,)
    source = Source("engine", "127.0.0.1", 1, "p", blocks, len(prompt))
    consumer.scheduler.add(Sequence("d", prompt, 6, source=source), consumer.now)
    step = consumer.scheduler.begin(consumer.now)
    (sequence,) = step.fetches
    lacking = len(sequence.blocks) - sequence.cached_tokens // BLOCK_TOKENS
    contents = producer.scheduler.pool.read_for_peer(blocks[len(blocks) - lacking :])
    consumer.scheduler.kv_arrived(sequence, contents, consumer.now)
    consumer.all()


def test_kv_from_another_engine_gives_the_same_answer_and_is_not_recomputed() -> None:
    prompt = list(range(10))
    producer, consumer = Run(scheduler()), Run(scheduler())
    hand_over(producer, consumer, prompt)
    assert consumer.tokens["d"] == answer(prompt)
    counts = consumer.scheduler.counts
    assert (counts.fetched_tokens, counts.computed_tokens, counts.cached_tokens) == (10, 0, 0)


def test_a_prefix_that_the_consumer_has_is_not_fetched() -> None:
    prompt = list(range(10))
    producer, consumer = Run(scheduler()), Run(scheduler())
    consumer.all(Sequence("before", prompt[:9], 1))
    hand_over(producer, consumer, prompt)
    assert consumer.tokens["d"] == answer(prompt)
    assert consumer.scheduler.counts.fetched_tokens == 2


def test_kept_kv_stays_until_it_is_released_and_holds_its_room() -> None:
    run = Run(scheduler()).all(Sequence("p", list(range(10)), 1, keep_kv=True))
    assert run.scheduler.pool.free_count == BLOCKS - 3
    assert run.scheduler.release_pin("p")
    assert run.scheduler.pool.free_count == BLOCKS
    assert not run.scheduler.release_pin("p")


def test_kept_kv_expires_with_its_lease_unless_renewed() -> None:
    run = Run(scheduler()).all(Sequence("p", list(range(10)), 1, keep_kv=True))
    assert run.scheduler.renew_pin("p", run.now + 20)
    run.scheduler.expire_pins(run.now + 31)
    assert "p" in run.scheduler.pins
    run.scheduler.expire_pins(run.now + 50.5)
    assert "p" not in run.scheduler.pins
    assert run.scheduler.counts.expired_pins == 1


def test_kv_that_was_overwritten_gives_another_answer() -> None:
    prompt = list(range(10))
    producer, consumer = Run(scheduler()), Run(scheduler())
    producer.all(Sequence("p", prompt, 1, keep_kv=True))
    blocks = list(producer.scheduler.pins["p"].blocks)
    producer.scheduler.expire_pins(producer.now + 31)
    producer.all(Sequence("other", list(range(100, 160)), 1))
    source = Source("engine", "127.0.0.1", 1, "p", tuple(blocks), len(prompt))
    consumer.scheduler.add(Sequence("d", prompt, 6, source=source), 0.0)
    (sequence,) = consumer.scheduler.begin(0.0).fetches
    consumer.scheduler.kv_arrived(sequence, producer.scheduler.pool.read_for_peer(blocks), 0.0)
    consumer.all()
    assert consumer.tokens["d"] != answer(prompt)


def test_an_answer_that_goes_on_does_not_spoil_kept_kv() -> None:
    prompt = list(range(10))
    producer, consumer = Run(scheduler()), Run(scheduler())
    producer.all(Sequence("p", prompt, 7, keep_kv=True))
    hand_over(producer, consumer, prompt, prepare=False)
    assert consumer.tokens["d"] == answer(prompt)


def test_a_failed_fetch_frees_the_blocks() -> None:
    run = Run(scheduler())
    source = Source("engine", "127.0.0.1", 1, "p", (0, 1), 6)
    sequence = Sequence("d", list(range(6)), 6, source=source)
    run.scheduler.add(sequence, 0.0)
    run.scheduler.begin(0.0)
    run.scheduler.kv_failed(sequence)
    assert sequence.phase is Phase.ended
    assert run.scheduler.pool.free_count == BLOCKS


# --- properties

REQUESTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 3), min_size=1, max_size=24), st.integers(1, 24), st.integers(0, 30), st.booleans()
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=80, deadline=None)
@given(REQUESTS)
def test_whatever_comes_room_is_kept_all_end_and_company_changes_no_answer(
    requests: list[tuple[list[int], int, int, bool]],
) -> None:
    run = Run(scheduler())
    arrivals = sorted(enumerate(requests), key=lambda item: item[1][2])
    prompts: dict[str, tuple[list[int], int]] = {}
    kept: set[str] = set()
    for number in range(5000):
        while arrivals and arrivals[0][1][2] <= number:
            index, (prompt, count, _, keep) = arrivals.pop(0)
            name = f"r{index}"
            prompts[name] = (prompt, count)
            kept |= {name} if keep else set()
            run.scheduler.add(Sequence(name, prompt, count, keep_kv=keep), run.now)
        progressed = run.step()
        assert len(run.scheduler.running) <= 4
        assert sum(count for _, count in run.work[-1]) <= 8
        assert 0 <= run.scheduler.pool.free_count <= BLOCKS
        if not progressed and not arrivals:
            if not run.scheduler.pins and not run.scheduler.busy:
                break
            run.now = run.scheduler.next_expiry_t or run.now
    assert {name: reason for name, reason in run.reasons.items() if reason != "length"} == {}
    assert run.scheduler.pool.free_count == BLOCKS
    assert run.tokens == {name: answer(prompt, count) for name, (prompt, count) in prompts.items()}
    assert run.scheduler.counts.expired_pins == len(kept)
