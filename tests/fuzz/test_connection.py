"""`Connection` fed with anything, without sockets: thousands of streams, each checked against h11."""

from random import Random

import h11
import pytest

from narwhal.router.http import Connection
from narwhal.router.incoming import Incoming
from tests.fuzz.reading import read_answers, requests_seen_by_h11
from tests.fuzz.streams import cut, stream
from tests.fuzz.timing import many_seeds
from tests.router.wires import App, Clock, Transport

SHARE = 0.2


class Deferring(App):
    """Answers when it is told to."""

    max_body = 65536
    max_head = 8192

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Incoming] = []
        self.due: list[Connection] = []

    def handle(self, connection: Connection, request: Incoming) -> None:
        self.asked.append(request)
        self.due.append(connection)

    def answer(self) -> None:
        if self.due:
            self.due.pop().respond(200, b"{}")


def play(pieces: list[bytes], steps: list[int]) -> tuple[Deferring, Transport]:
    """Feed a stream in pieces; after each, answer as many requests as the next step says."""
    clock, transport, app = Clock(), Transport(), Deferring()
    connection = Connection(app, clock)  # type: ignore[arg-type]
    connection.connection_made(transport)  # type: ignore[arg-type]
    for number, piece in enumerate(pieces):
        if transport.closed:
            break
        connection.data_received(piece)
        for _ in range(steps[number % len(steps)]):
            app.answer()
    while app.due:
        app.answer()
    return app, transport


def check(data: bytes, app: Deferring, transport: Transport) -> None:
    """What was asked is what h11 reads in the stream, and what was answered is HTTP."""
    for ours, (method, target, body) in zip(app.asked, requests_seen_by_h11(data), strict=False):
        assert ours.method.encode() == method
        assert ours.body == body
        if not target.startswith(b"http"):
            assert ours.path == target.partition(b"?")[0].decode("latin1")
    answers = read_answers(transport.written, [request.method for request in app.asked], ended=transport.closed)
    assert all(answer.whole for answer in answers)
    assert len(app.asked) <= len(answers) <= len(app.asked) + 1
    assert [answer.status for answer in answers[: len(app.asked)]] == [200] * len(app.asked)
    refusals = answers[len(app.asked) :]
    assert all(refusal.status in (400, 413, 417, 431, 501, 505) for refusal in refusals)
    assert all(refusal.body.startswith(b'{"error":') for refusal in refusals)


def one(random: Random) -> None:
    pieces = cut(random, stream(random))
    steps = [random.randint(0, 3) for _ in range(random.randint(1, 4))]
    try:
        check(b"".join(pieces), *play(pieces, steps))
    except Exception as error:
        raise AssertionError(f"{error!r}; pieces {pieces}, steps {steps}") from error


@pytest.mark.e2e
@pytest.mark.timeout(1800)
def test_any_stream() -> None:
    print(f"{many_seeds(SHARE, one, each=100)} streams")


FOUND: dict[str, list[bytes]] = {
    "a sound one in single bytes": [bytes([byte]) for byte in b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"],
}
"""What the fuzzer once found, in the pieces that it came in."""


@pytest.mark.parametrize("pieces", FOUND.values(), ids=FOUND)
@pytest.mark.parametrize("steps", [[0], [1], [3, 0]])
def test_what_was_once_found(pieces: list[bytes], steps: list[int]) -> None:
    check(b"".join(pieces), *play(pieces, steps))


def test_the_reader_itself_notices_what_is_wrong() -> None:
    """A check that cannot fail finds nothing."""
    sound = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    closing = sound.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    assert [a.status for a in read_answers(sound * 2, ["GET", "GET"], ended=False)] == [200, 200]
    assert not read_answers(sound[:-1], ["GET"], ended=True)[0].whole
    for wrong in (sound + b"{}", closing + sound, sound.replace(b": 2", b": 1")):
        with pytest.raises((h11.RemoteProtocolError, AssertionError)):
            read_answers(wrong, ["GET", "GET"], ended=True)
