"""Streams are counted alike, however their bytes are cut: into chunks of HTTP, and into reads."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from narwhal.measure import Outcome, Planned
from narwhal.measure.stream import CompletionProtocol
from tests.measure.servers import DONE, END, chunk, event, head, usage


class _Transport:
    """Takes what is written."""

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        pass


def read(reads: list[bytes]) -> Outcome:
    """What a protocol makes of an answer that comes in these reads; its clock ticks with each look."""
    ticks = iter(range(10**6))
    outcome = Outcome(Planned(0.0, 5, 9, "test"), 0.0)
    protocol = CompletionProtocol(b"", outcome, lambda: float(next(ticks)), lambda ended: None)
    protocol.connection_made(_Transport())  # type: ignore[arg-type]
    for data in reads:
        protocol.data_received(data)
    return outcome


TEXT = st.text(alphabet=st.sampled_from('ab "\\\n}]{:é'), max_size=6) | st.just("x" * 300)
KINDS = st.sampled_from(["completion", "chat", "ids", "usage null"])


def made(kind: str, text: str, number: int) -> bytes:
    """A token as servers write it: plain, as chat, with token ids, or with a usage that is null."""
    head: dict[str, Any] = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": None}
    if kind == "chat":
        choice = {"index": 0, "delta": {"content": text}, "logprobs": None}
    if kind == "ids":
        choice |= {"token_ids": [number * 37 % 1000]}
    return event(head | {"choices": [choice]} | ({"usage": None} if kind == "usage null" else {}))


@given(
    kind=KINDS,
    texts=st.lists(TEXT, max_size=25),
    together=st.lists(st.integers(1, 3), max_size=25),
    cuts=st.none() | st.lists(st.integers(1, 400), max_size=40),
    counted=st.booleans(),
)
def test_tokens_are_counted_alike_however_they_are_cut(
    kind: str, texts: list[str], together: list[int], cuts: list[int] | None, counted: bool
) -> None:
    events = [made(kind, text, number) for number, text in enumerate(texts)]
    tokens = sum(bool(text) for text in texts)
    events += [usage(tokens + 3)] if counted else []
    events.append(DONE)
    chunks = []
    while events:
        count = together.pop() if together else 1
        chunks.append(chunk(b"".join(events[:count])))
        events = events[count:]
    reads = [head(), *chunks, END]
    if cuts is not None:
        whole, reads = b"".join(reads), []
        while whole:
            size = cuts.pop() if cuts else len(whole)
            reads.append(whole[:size])
            whole = whole[size:]
    outcome = read(reads)
    assert (outcome.result, outcome.error) == ("served", "")
    assert outcome.tokens == (tokens + 3 if counted else tokens)
    assert (outcome.first_token_s is None) == (tokens == 0)


def test_most_reads_pass_the_parser_by_and_count_the_same() -> None:
    """Alone in their chunks, tokens are told by what they have in common; each has its moment."""
    chunks = [chunk(made("ids", f" t{number}", number)) for number in range(50)]
    outcome = read([head(), *chunks, chunk(made("ids", "", 0)), chunk(made("ids", " end", 1) + DONE), END])
    assert (outcome.result, outcome.tokens, outcome.first_token_s, outcome.last_token_s) == ("served", 51, 0.0, 50.0)
    assert outcome.gap_s == 1.0


def test_a_chunk_that_is_longer_than_its_read_is_no_token_yet() -> None:
    one = made("completion", " a", 0)
    longer = chunk(one + one)
    outcome = read([head(), chunk(one), longer[: 5 + len(one)], longer[5 + len(one) :], chunk(DONE), END])
    assert (outcome.result, outcome.tokens) == ("served", 3)


def test_nothing_counts_after_the_end() -> None:
    one = chunk(made("completion", " a", 0))
    broken = event({"error": {"message": "gone"}})
    outcome = read([head(), one, one, chunk(broken), one, one])
    assert (outcome.result, outcome.tokens, outcome.error) == ("cut", 2, "gone")
