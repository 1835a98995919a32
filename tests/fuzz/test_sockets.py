"""A real router, fuzzed from both sides over real sockets: clients that send anything, engines that answer anything.

Whatever came: no exception is logged, the router lives, every answer is HTTP, sound requests are served as ever,
nothing stays behind and memory stays bounded.
"""

import contextlib
import json
import re
import socket
import struct
from collections.abc import Callable, Iterator
from random import Random

import pytest

from tests.fuzz.reading import Answer, read_answers
from tests.fuzz.streams import BODY, cut, damaged, sound_request, stream
from tests.fuzz.timing import many_seeds
from tests.router.harness import (
    END,
    ERROR,
    HANDOFF,
    STREAM_HEAD,
    Asked,
    FakeEngine,
    Router,
    eventually,
    read_all,
    routing,
    token,
    tokens,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
CLIENTS_SHARE, ENGINES_SHARE = 0.5, 0.3
MEMORY_BYTES = 64 << 20
"""How much a router may grow: its pools, and the journal's lines that wait."""
Fuzzed = tuple[Router, FakeEngine, FakeEngine]


@pytest.fixture
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    """A router and two engines; afterwards it must be as it was before."""
    prefill, decode = FakeEngine(), FakeEngine()
    with routing(tmp_path_factory.mktemp("fuzzed"), [prefill, decode]) as router:
        before = router.rss_bytes()
        yield router, prefill, decode
        prefill.reset()
        decode.reset()
        unharmed(router)
        eventually(lambda: all(e["residents"] + e["prefills"] == 0 for e in router.state()["engines"]), "no residents")
        state = router.state()
        assert (state["queue"]["requests"], state["seats_waiting"]) == (0, 0)
        assert router.rss_bytes() - before < MEMORY_BYTES
        print(f"{(router.rss_bytes() - before) >> 20} MB more, counts {state['counts']}")
    prefill.close()
    decode.close()


def unharmed(router: Router) -> None:
    """It lives, has logged no exception, and serves."""
    assert router.process.poll() is None
    logged = router.log.read_text()
    assert "Traceback" not in logged, logged[-3000:]
    assert " ERROR " not in logged, logged[-3000:]
    assert_served(router, [b"".join([sound_request(Random(0), max_tokens=3)])], [3])


def assert_served(router: Router, pieces: list[bytes], counts: list[int]) -> None:
    """Sound requests in any pieces: one whole answer each, in order."""
    with router.connect() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            sock.sendall(piece)
        answers: list[Answer] = []
        data = b""
        while len(answers) < len(counts) or not answers[-1].whole:
            piece = sock.recv(65536)
            assert piece, f"closed after {data[-300:]!r}"
            data += piece
            answers = read_answers(data, ["POST"] * len(counts), ended=False)
    router.sockets.remove(sock)
    for answer, count in zip(answers, counts, strict=True):
        assert answer.status == 200, answer.body
        streamed = answer.body.startswith(b"data: ")
        found = answer.body.count(b"data: ") - 1 if streamed else json.loads(answer.body)["usage"]["completion_tokens"]
        assert found == count


def send_anything(router: Router, pieces: list[bytes], ending: str) -> bytes:
    """Send pieces as far as the router takes them, end in one of three ways, and return what came back."""
    with router.connect() as sock, contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            for piece in pieces:
                sock.sendall(piece)
            if ending == "half":
                sock.shutdown(socket.SHUT_WR)
                return read_all(sock)
        if ending == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    router.sockets.clear()
    return b""


def methods_of(pieces: list[bytes]) -> list[str]:
    """HEAD where every request of a stream is one; otherwise what h11 need not know."""
    found = re.findall(rb"([A-Z]+) \S+ HTTP/1\.[01]", b"".join(pieces))
    return [method.decode() if method == b"HEAD" else "GET" for method in found]


def test_clients_that_send_anything(fuzzed: Fuzzed) -> None:
    router = fuzzed[0]

    def one(random: Random) -> None:
        if random.random() < 0.4:
            counts = [random.randint(1, 4) for _ in range(random.randint(1, 5))]
            requests = [sound_request(random, max_tokens=n, stream=random.random() < 0.5) for n in counts]
            assert_served(router, cut(random, b"".join(requests)), counts)
            return
        pieces = cut(random, stream(random))
        answer = send_anything(router, pieces, random.choice(["half", "leave", "reset"]))
        methods = methods_of(pieces)
        if "HEAD" not in methods:
            assert all(answer.status != 500 for answer in read_answers(answer, methods, ended=False))

    print(f"{many_seeds(CLIENTS_SHARE, one, lambda: unharmed(router))} connections")


_JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


def sound_answer(asked: Asked, random: Random) -> bytes:
    """What a healthy engine sends, in one of the forms that HTTP allows."""
    if asked.leg != 1 and asked.body.get("stream"):
        return STREAM_HEAD + token(" a") + token(" b") + random.choice([END, ERROR + END, b""])
    usage = {"prompt_tokens": 7, "completion_tokens": 2}
    document = {"choices": [], "usage": usage} | ({"kv_transfer_params": HANDOFF} if asked.leg == 1 else {})
    data = json.dumps(document).encode()
    form = random.choice(["length", "chunked", "close"])
    if form == "length":
        return _JSON_HEAD + b"content-length: %d\r\n\r\n" % len(data) + data
    if form == "close":
        return _JSON_HEAD + b"connection: close\r\n\r\n" + data
    return _JSON_HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(data), data)


def answering(random: Random, *, harmed: bool) -> Callable[[Asked, socket.socket], None]:
    """An engine's answer, sound or damaged, in pieces, and then the end."""
    seed = random.getrandbits(64)

    def answer(asked: Asked, sock: socket.socket) -> None:
        own = Random(seed)  # engines answer in threads of their own
        data = sound_answer(asked, own)
        if harmed:
            data = damaged(own, data)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in cut(own, data, 4):
            sock.sendall(piece)
        sock.shutdown(socket.SHUT_RDWR)

    return answer


def test_engines_that_answer_anything(fuzzed: Fuzzed) -> None:
    router, prefill, decode = fuzzed

    def one(random: Random) -> None:
        harmed = random.choice(["leg 1", "leg 2", "leg 2", "whole", "none"])
        prefill.leg_1 = answering(random, harmed=harmed == "leg 1")
        decode.leg_2 = answering(random, harmed=harmed == "leg 2")
        prefill.whole = decode.whole = answering(random, harmed=harmed == "whole")
        body = {**BODY, "stream": random.random() < 0.7, "n": random.choice([1, 1, 1, 2])}
        version, route = random.choice(["1.1", "1.1", "1.0"]), random.choice(["completions", "chat/completions"])
        body |= {"messages": [{"role": "user", "content": "hello"}]} if "chat" in route else {}
        data = json.dumps(body).encode()
        head = f"POST /v1/{route} HTTP/{version}\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
        with router.connect() as sock:
            sock.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data)
            answer = read_all(sock)
        router.sockets.clear()
        body = check_answer(answer, version)
        if harmed == "none":  # damaged bytes may hold any mark in any place
            assert own_errors(body) + body.count(b"[DONE]") == body.startswith(b"data: ")

    def after() -> None:
        prefill.reset()
        decode.reset()
        prefill.whole = decode.whole = tokens
        unharmed(router)

    print(f"{many_seeds(ENGINES_SHARE, one, after)} answers")


def own_errors(body: bytes) -> int:
    """How often the router says in a stream that it broke."""
    return body.count(b'data: {"error":{"message":"the engine')


def check_answer(data: bytes, version: str) -> bytes:
    """One whole answer, which says at most once that it broke; returns its body."""
    if version == "1.0" and b"content-length" not in data.partition(b"\r\n\r\n")[0]:
        assert data.startswith(b"HTTP/1.1 200 "), data
        body = data.partition(b"\r\n\r\n")[2]
    else:
        [answer] = read_answers(data, ["POST"], ended=True)
        assert answer.whole, data
        assert answer.status in (200, *range(400, 600))
        body = answer.body
        if answer.status != 200:
            assert set(json.loads(body)["error"]) >= {"message"}, body
    assert own_errors(body) <= 1
    return body
