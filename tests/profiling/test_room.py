"""Plans that fit the engine, samples that survive a kill, windows, contracts, refusals."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.fleet import EngineSpec, Expanded, check_text, expand
from narwhal.fleet.model import Fleet
from narwhal.profiling import Limits
from narwhal.profiling.build import Drawn, kv_bytes_per_token
from narwhal.profiling.client import Answer, EngineUrl
from narwhal.profiling.facts import EngineFacts, contract_of, contract_terms, totals
from narwhal.profiling.fit import Errors
from narwhal.profiling.fleet import sharing
from narwhal.profiling.plan import plan_sweep
from narwhal.profiling.samples import DecodeSample, PrefillSample, SampleFile, TransferSample
from narwhal.profiling.sweep import directed_pairs, overlap
from tests.fleet.fleets import BASE

FACTS = EngineFacts("e", "1", 16, 65536, True, 0, "c")


def some_fleet() -> Fleet:
    fleet = check_text(BASE).fleet
    assert fleet is not None
    return fleet


def simulated_fleet() -> Expanded:
    text = BASE.replace("{kind: venv, package: vllm==0.26.0}", "{kind: simulated}")
    fleet = check_text(text).fleet
    assert fleet is not None
    return expand(fleet)


@given(
    capacity=st.integers(256, 500_000),
    length=st.integers(128, 131_072),
    seqs=st.integers(1, 512),
    block=st.sampled_from([16, 64, 128]),
    short=st.booleans(),
)
def test_a_plan_never_asks_for_more_than_the_engine_holds(
    capacity: int, length: int, seqs: int, block: int, short: bool
) -> None:
    facts = EngineFacts("e", "1", block, capacity, True, 0, "c")
    plan = plan_sweep(facts, max_model_len=length, max_num_seqs=seqs, short=short)
    room = min(capacity, length)
    assert plan.prefill
    assert all(tokens + 1 < room and cached < tokens and cached % block == 0 for tokens, cached in plan.prefill)
    assert all(requests <= seqs for requests, _ in plan.decode)
    assert all(tokens + 2 <= room for tokens in plan.transfer)
    assert all(requests * (tokens + plan.decode_tokens) <= capacity for requests, tokens in plan.decode)


def test_samples_survive_a_torn_line_and_another_contract(tmp_path: Path) -> None:
    path = tmp_path / "samples" / "e.jsonl"
    one = PrefillSample("e", 64, 0, 0.01, 0.1, 5)
    two = DecodeSample("e", 4, 128, 600.0, 0.02, 380)
    SampleFile(path, "new").append([one])
    SampleFile(path, "old").append([PrefillSample("e", 64, 0, 9.9, 0.1, 5)])
    with path.open("ab") as file:
        file.write(b'{"contract":"new","sample":{"sample":"decode","engine"')  # killed in mid-line
    SampleFile(path, "new").append([two])
    assert SampleFile(path, "new").read() == {one.cell: one, two.cell: two}


def answer(times: list[float], tokens: list[int]) -> Answer:
    return Answer(0.0, 200, b"", times, tokens)


def test_the_window_is_where_all_streams_run() -> None:
    early = answer([1.0 + 0.1 * i for i in range(40)], list(range(1, 41)))
    late = answer([3.0 + 0.2 * i for i in range(40)], list(range(1, 41)))
    found = overlap([early, late])
    assert found is not None
    interval_s, counted, produced = found
    assert abs(interval_s - 0.15) < 1e-6  # the mean of .1 and .2
    assert counted < 30
    assert produced > 5


def test_merged_tokens_do_not_shorten_the_interval() -> None:
    merged = answer([0.0, 0.1, 0.5, 1.0, 1.5], [1, 2, 6, 11, 16])
    found = overlap([merged, merged])
    assert found is not None
    assert abs(found[0] - 0.1) < 1e-9


def test_streams_that_never_ran_together_have_no_window() -> None:
    assert overlap([answer([0.0, 0.1, 0.2], [1, 2, 3]), answer([5.0, 5.1, 5.2], [1, 2, 3])]) is None


def contract(fleet: Fleet, spec: EngineSpec, shared_by: int, version: str) -> str:
    return contract_of(contract_terms(fleet, spec, shared_by, version, {}))


def test_contract_ignores_ports_and_knows_limits() -> None:
    fleet = some_fleet()
    expanded = expand(fleet)
    first, second = expanded.engines[:2]
    assert contract(fleet, first, 1, "1") == contract(fleet, second, 1, "1")
    assert contract(fleet, first, 1, "1") != contract(fleet, first, 1, "2")
    assert contract(fleet, first, 1, "1") != contract(fleet, first, 2, "1")
    changed = fleet.model_copy(update={"engines": fleet.engines.model_copy(update={"max_num_seqs": 7})})
    assert contract(changed, first, 1, "1") != contract(fleet, first, 1, "1")


def test_bytes_of_a_token_come_from_whole_blocks() -> None:
    """57 tokens moved one block of 128 (design, What a real engine does)."""
    assert kv_bytes_per_token([TransferSample("d", "p", 57, 0.01, 524_288, 3)], 128) == 4096
    assert kv_bytes_per_token([TransferSample("d", "p", 57, 0.01, None, 3)], 128) is None


def test_every_ordered_pair_once() -> None:
    engines = [EngineUrl(name, "http://127.0.0.1:1") for name in "abcd"]
    pairs = [(p.id, c.id) for p, c in directed_pairs(engines)]
    assert len(pairs) == len(set(pairs)) == 12
    assert all(producer != consumer for producer, consumer in pairs)


def test_a_refusal_names_the_curve_and_draws_it() -> None:
    drawn = Drawn("prefill", ("e 64", "e 128"), (0.01, 0.02), Errors(0.3, 0.4, 0.5, (0.4, -0.2)))
    assert "prefill" in (drawn.refused(Limits()) or "")
    assert Drawn("x", (), (), Errors(0.01, 0.02, 0.03, ())).refused(Limits()) is None
    assert "left" not in drawn.picture()
    assert "e 128" in drawn.picture()
    assert "-20.0%" in drawn.picture()
    assert "not fitted" in (Drawn("x", (), (), Errors(0.01, 0.02, 0.9, ())).refused(Limits()) or "")


def test_simulated_engines_share_nothing() -> None:
    expanded = simulated_fleet()
    assert all(len(group) == 1 for group in sharing(expanded, expanded.engines))


def test_totals_reads_samples_and_nothing_else() -> None:
    page = b'# HELP a b\na{x="1"} 2\na{x="2"} 3\nb NaNo\nc 1e3\n'
    assert totals(page) == {"a": 5.0, "c": 1000.0}


@pytest.mark.parametrize("text", [b"", b"nonsense", b"a{"])
def test_totals_of_nothing(text: bytes) -> None:
    assert totals(text) == {}
