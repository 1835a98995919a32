"""Token ids that are read as the bytes pass are those that a plain parse of the whole answer finds."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.router.chunks import ChunkTracker, dechunk
from narwhal.router.delivered import Delivered, without_prompt_ids
from tests.router.harness import FakeEngine, Router, event, post, read_all, routing

CHATS = st.booleans()
TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(['"token_ids":[1,2]', '","token_ids":[7],"x":"', "\n\n\r\n", "data: ", "prompt_token_ids"]),
)
EVENTS = st.lists(st.tuples(TEXTS, st.lists(st.integers(0, 2**32 - 1), max_size=4)), min_size=1, max_size=12)


def documents(events: list[tuple[str, list[int]]], *, chat: bool, prompt: list[int]) -> list[dict[str, Any]]:
    """Events as vLLM sends them where ids were asked for."""
    if chat:
        role = {"prompt_token_ids": prompt, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
        return [role, *({"choices": [{"index": 0, "delta": {"content": t}, "token_ids": i}]} for t, i in events)]
    return [
        {"choices": [{"index": 0, "text": text, "prompt_token_ids": None if n else prompt, "token_ids": ids}]}
        for n, (text, ids) in enumerate(events)
    ]


def plain_ids(body: bytes) -> list[int]:
    """The ids of a whole answer, by a JSON parser."""
    found: list[int] = []
    for each in dechunk(body).decode().split("\n\n"):
        if each.startswith("data: {"):
            for choice in json.loads(each.removeprefix("data: "))["choices"]:
                found += choice.get("token_ids") or []
    return found


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


@settings(deadline=None)
@given(EVENTS, CHATS, st.lists(st.integers(0, 1 << 16), max_size=8), st.lists(st.integers(0, 1 << 16), max_size=40))
def test_ids_are_right_however_chunks_and_reads_are_split(
    events: list[tuple[str, list[int]]], chat: bool, chunk_cuts: list[int], read_cuts: list[int]
) -> None:
    framed = b"".join(event(document) for document in documents(events, chat=chat, prompt=[5, 6])) + event("[DONE]")
    if chunk_cuts:  # an event may lie in several chunks, and several events in one
        framed = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in pieces(dechunk(framed), chunk_cuts))
    body = framed + b"0\r\n\r\n"
    tracker, delivered = ChunkTracker(), Delivered()
    for read in pieces(body, read_cuts):
        whole = tracker.feed(read)
        if whole:
            delivered.feed(whole, tracker.whole_events)
    assert tracker.done
    assert delivered.ids == plain_ids(body) == [i for _, ids in events for i in ids]


def test_whole_events_are_read_without_taking_the_framing_off() -> None:
    tracker, delivered = ChunkTracker(), Delivered()
    for document in documents([("a", [1]), ("b", [2, 3])], chat=False, prompt=[9]):
        delivered.feed(tracker.feed(event(document)), tracker.whole_events)
    assert delivered.ids == [1, 2, 3]
    assert delivered._dechunker is None


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_the_prompt_alone_is_cut_out(chat: bool, last: bool) -> None:
    sent = documents([("a", [1]), ('"prompt_token_ids":[3]', [2])], chat=chat, prompt=[5, 6])
    data = b"".join(map(event, sent)) + (b"0\r\n\r\n" if last else b"")
    cut = without_prompt_ids(data, last=last)
    tracker = ChunkTracker()
    assert tracker.feed(cut) == cut
    assert tracker.done == last
    shown = [json.loads(each[6:]) for each in dechunk(cut).decode().split("\n\n") if each]
    for document in sent:
        holder = document if chat else document["choices"][0]
        if holder.get("prompt_token_ids"):
            holder["prompt_token_ids"] = None
    assert shown == sent


def answering_with_ids(engine: FakeEngine) -> None:
    """Have an engine answer leg 2 with ids where it is asked for them, as vLLM does."""

    def answer(asked: Any, sock: Any) -> None:
        asks = asked.body.get("return_token_ids")
        sent = documents([("a", [11]), ("b", [12, 13])], chat=False, prompt=[5, 6])
        if not asks:
            for document in sent:
                document["choices"][0] |= {"prompt_token_ids": None, "token_ids": None}
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        sock.sendall(head + b"".join(map(event, sent)) + event("[DONE]") + b"0\r\n\r\n")

    engine.leg_2 = answer


def ask(router: Router, headers: str = "", **body: Any) -> list[dict[str, Any]]:
    """The choices of a streamed answer."""
    sock = router.connect()
    sock.sendall(
        post({"prompt": "hi", "stream": True, "max_tokens": 3, **body}, extra=f"Connection: close\r\n{headers}")
    )
    content = dechunk(read_all(sock).partition(b"\r\n\r\n")[2]).decode()
    return [json.loads(each[6:])["choices"][0] for each in content.split("\n\n") if each.startswith("data: {")]


def test_streams_are_asked_for_ids_and_the_prompt_stays_here(tmp_path_factory: pytest.TempPathFactory) -> None:
    engines = [FakeEngine(), FakeEngine()]
    answering_with_ids(engines[1])
    with routing(
        tmp_path_factory.mktemp("ids"), engines, serving="admission: open, continuation: {enabled: true}"
    ) as router:
        shown = ask(router)
        assert [choice["token_ids"] for choice in shown] == [[11], [12, 13]]
        assert [choice["prompt_token_ids"] for choice in shown] == [None, None]
        assert [
            asked.body.get("return_token_ids") for asked in engines[1].generations if asked.body["prompt"] == "hi"
        ] == [True]
        assert ask(router, return_token_ids=True)[0]["prompt_token_ids"] == [5, 6]
        router.send("POST", "/v1/completions", {"prompt": "hi", "max_tokens": 3})
        assert [
            asked.body.get("return_token_ids") for asked in engines[1].generations if asked.body["prompt"] == "hi"
        ] == [True, True, None]
    rows = router.rows("request")
    assert [row["completion_tokens"] for row in rows[:2]] == [3, 3]  # told by ids: events alone would say two
    for engine in engines:
        engine.close()


def test_nothing_is_asked_where_a_stream_cannot_go_on(router: Router, decode: FakeEngine) -> None:
    answering_with_ids(decode)
    for more, headers in (({"logprobs": 1}, ""), ({}, "X-Narwhal-Continue: off\r\n")):
        decode.asked.clear()
        assert [choice["token_ids"] for choice in ask(router, headers, **more)] == [None, None]
        assert [asked.body.get("return_token_ids") for asked in decode.generations if asked.body["prompt"] == "hi"] == [
            None
        ]


def test_nothing_is_asked_where_continuation_is_off(tmp_path: Path) -> None:
    engines = [FakeEngine(), FakeEngine()]
    answering_with_ids(engines[1])
    with routing(tmp_path, engines, serving="admission: open, continuation: {enabled: false}") as router:
        assert [choice["token_ids"] for choice in ask(router)] == [None, None]
        assert [
            asked.body.get("return_token_ids") for asked in engines[1].generations if asked.body["prompt"] == "hi"
        ] == [None]
    for engine in engines:
        engine.close()
