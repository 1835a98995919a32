"""Streams that break in front of engines which do exactly what a test says."""

import itertools
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.router.harness import (
    END,
    ERROR,
    STREAM_HEAD,
    Asked,
    FakeEngine,
    Router,
    event,
    eventually,
    leg_1,
    post,
    read_all,
    read_until,
    reply,
    routing,
    tokens,
)
from tests.router.streams import events

PROMPT = [5, 6, 7, 8, 9, 10, 11]
WORDS = ["the", " sea", " is", " wide", " today"]
BODY = {"model": "m", "prompt": "tell", "max_tokens": 5, "stream": True, "stream_options": {"include_usage": True}}
USAGE = {"prompt_tokens": 7, "total_tokens": 12, "completion_tokens": 5}
SEEN = threading.Event()
"""Set once the client has two tokens."""
Four = tuple[Router, list[FakeEngine]]


def said(place: int, *, first: int, name: str = "cmpl-1", last: bool = False) -> bytes:
    """The event of a token; its id is its place, and 100 more."""
    choice = {
        "index": 0,
        "text": WORDS[place],
        "finish_reason": "length" if last else None,
        "prompt_token_ids": PROMPT if place == first else None,
        "token_ids": [100 + place],
    }
    created = 1700 if name == "cmpl-1" else 1800
    return event({"id": name, "object": "text_completion", "created": created, "model": "m", "choices": [choice]})


def used(completion: int, prompt: int = 7) -> bytes:
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
    return event({"id": "x", "object": "text_completion", "created": 1800, "choices": [], "usage": usage})


def serving(asked: Asked, sock: socket.socket) -> None:
    """What a healthy engine answers to leg 2, and where it is asked for the text of ids."""
    if asked.path == "/detokenize":
        reply(sock, {"prompt": "".join(WORDS[token - 100] for token in asked.body["tokens"])})
        return
    prompt = asked.body["prompt"]
    if isinstance(prompt, list) and prompt[:7] != PROMPT:
        tokens(asked, sock)  # the router tries a pair
        return
    start = len(prompt) - 7 if isinstance(prompt, list) else 0
    count = asked.body["max_tokens"]
    name = "cmpl-1" if start == 0 else "cmpl-2"
    answer = [said(start + n, first=start, name=name, last=n == count - 1) for n in range(count)]
    sock.sendall(STREAM_HEAD + b"".join(answer) + used(count, 7 + start) + END)


def breaking(rest: bytes = b"", after: int = 2) -> Any:
    """Leg 2 that ends with `rest`, once the client has seen the first tokens."""

    def answer(asked: Asked, sock: socket.socket) -> None:
        sock.sendall(STREAM_HEAD + b"".join(said(n, first=0) for n in range(after)))
        assert not after or SEEN.wait(60)
        sock.sendall(rest)
        sock.shutdown(socket.SHUT_RDWR)

    return answer


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Four]:
    engines = [FakeEngine() for _ in range(4)]
    recovery = "probe_interval_s: 0.1, readmit_after: 1, eject_after: 1000"
    with routing(tmp_path_factory.mktemp("resuming"), engines, recovery=recovery) as router:
        yield router, engines
    for engine in engines:
        engine.close()


@pytest.fixture
def four(running: Four) -> Four:
    """Two prefill and two decode engines: healthy, but for the first leg 2 that one gets."""
    for engine in running[1]:
        engine.reset()
        engine.leg_2 = engine.whole = serving
    return running


def once(engines: list[FakeEngine], first: Any) -> None:
    """Have whichever decode engine is asked first answer so, once."""
    left = [first]

    def answer(asked: Asked, sock: socket.socket) -> None:
        (left.pop() if left and asked.body.get("prompt") == "tell" else serving)(asked, sock)

    engines[2].leg_2 = engines[3].leg_2 = answer


names = (f"asked-{number}" for number in itertools.count())


def ask(router: Router, name: str = "", version: str = "1.1", **more: Any) -> bytes:
    extra = f"Connection: close\r\nX-Request-Id: {name or next(names)}\r\n"
    with router.connect() as sock:
        SEEN.clear()
        sock.sendall(post({**BODY, **more}, version=version, extra=extra))
        start = read_until(sock, b" sea")
        SEEN.set()
        return start + read_all(sock)


def text(found: list[Any]) -> str:
    return "".join(choice["text"] for each in found if isinstance(each, dict) for choice in each.get("choices", ()))


def row(router: Router, name: str) -> Any:
    eventually(lambda: any(each["id"] == name for each in router.rows("request")), "the row")
    return next(each for each in router.rows("request") if each["id"] == name)


@pytest.mark.parametrize("rest", [b"", ERROR + END], ids=["cut", "error"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_the_rest_comes_from_another_engine(four: Four, rest: bytes, version: str) -> None:
    router, engines = four
    name = next(names)
    once(engines, breaking(rest))
    answer = ask(router, name, version)
    found = events(answer)
    assert text(found) == "".join(WORDS)
    assert (found[-2]["usage"], found[-1]) == (USAGE, "[DONE]")
    assert {(each["id"], each["created"]) for each in found[:-1]} == {("cmpl-1", 1700)}
    assert answer.count(b"HTTP/1.") == 1
    assert answer.endswith(b"0\r\n\r\n") is (version == "1.1")
    asked = [
        one.body for engine in engines for one in engine.generations if one.body.get("prompt") == [*PROMPT, 100, 101]
    ]
    assert sorted(one["max_tokens"] for one in asked) == [1, 3]
    done = row(router, name)
    assert (done["outcome"], done["continued"], done["retries"], done["completion_tokens"]) == ("served", 1, 0, 5)
    assert done["prompt_tokens"] == 7


def test_a_stream_that_lacks_only_its_end_gets_one_here(four: Four) -> None:
    router, engines = four
    name = next(names)
    once(engines, breaking(b"".join(said(n, first=0, last=n == 4) for n in range(5)), after=0))
    found = events(ask(router, name))
    assert text(found) == "".join(WORDS)
    assert (found[-2]["usage"], found[-1]) == (USAGE, "[DONE]")
    assert not [one for engine in engines for one in engine.generations if one.path == "/detokenize"]
    done = row(router, name)
    assert (done["outcome"], done["continued"], done["completion_tokens"]) == ("served", 0, 5)


def test_an_engine_that_does_not_tell_the_text_is_followed_by_another(four: Four) -> None:
    router, engines = four
    once(engines, breaking())
    refusals: list[int] = []

    def refuse_once(asked: Asked, sock: socket.socket) -> None:
        if asked.path == "/detokenize" and not refusals:
            refusals.append(1)
            reply(sock, {"error": {"message": "no", "code": 500}}, 500)
        else:
            serving(asked, sock)

    for engine in engines:
        engine.whole = refuse_once
    assert text(events(ask(router))) == "".join(WORDS)
    assert refusals


def refusal(four: Four, **more: Any) -> dict[str, Any]:
    """The one error with which a stream ends."""
    router, _ = four
    name = next(names)
    answer = ask(router, name, **more)
    found = events(answer)
    assert answer.count(b"HTTP/1.1") == 1
    assert b"[DONE]" not in answer
    assert sum("error" in each for each in found) == 1
    assert row(router, name)["outcome"] == "cut"
    error: dict[str, Any] = found[-1]["error"]
    return error


def test_ids_with_another_text_end_the_stream(four: Four) -> None:
    once(four[1], breaking())
    for engine in four[1]:
        engine.whole = lambda asked, sock: reply(sock, {"prompt": "something else"})
    assert "its ids do not end with its text" in refusal(four)["message"]


def test_a_rest_that_engines_refuse_ends_the_stream(four: Four) -> None:
    once(four[1], breaking())

    def refuse(asked: Asked, sock: socket.socket) -> None:
        if asked.body["prompt"] == "tell":
            leg_1(asked, sock)
        else:
            reply(sock, {"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}}, 400)

    for engine in four[1]:
        engine.leg_1 = refuse
    assert refusal(four)["code"] == "upstream"


def test_dropped_ids_are_not_told_twice_to_who_sees_them(four: Four) -> None:
    """The client has the ids of half a character; the rest would begin with them again."""
    router, engines = four
    half = json.loads(json.dumps({"choices": [{"index": 0, "text": "", "token_ids": [102]}]}))

    def with_half(asked: Asked, sock: socket.socket) -> None:
        breaking(event(half))(asked, sock)

    def detokenize(asked: Asked, sock: socket.socket) -> None:
        ids = asked.body["tokens"]
        known = "".join(WORDS[token - 100] for token in ids[:2])
        reply(sock, {"prompt": known + "\ufffd" * (len(ids) - 2)})

    for more in ({}, {"return_token_ids": True}):
        once(engines, with_half)
        for engine in engines:
            engine.whole = detokenize
        if more:
            assert "told again" in refusal(four, **more)["message"]
        else:
            assert text(events(ask(router))) == "".join(WORDS)


def test_longer_ids_than_may_be_kept_end_the_stream(tmp_path: Path) -> None:
    engines = [FakeEngine() for _ in range(4)]
    for engine in engines:
        engine.leg_2 = engine.whole = serving
    released: list[Router] = []

    def wait_and_break(asked: Asked, sock: socket.socket) -> None:
        sock.sendall(STREAM_HEAD + said(0, first=0) + said(1, first=0))
        router = released[0]
        eventually(lambda: any(e["kv_tokens"] >= 9 for e in router.state()["engines"]), "the sweep")
        sock.shutdown(socket.SHUT_RDWR)

    serving_ = "admission: open, continuation: {max_bytes: 10}"
    with routing(tmp_path, engines, serving=serving_) as router:
        released.append(router)
        once(engines, wait_and_break)
        assert "its ids are not known" in refusal((router, engines))["message"]
    for engine in engines:
        engine.close()
