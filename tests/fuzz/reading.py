"""What came back, read by h11: another implementation must understand every answer."""

import h11


class Answer:
    """One answer."""

    def __init__(self, status: int, body: bytes, whole: bool) -> None:
        self.status, self.body, self.whole = status, body, whole


def read_answers(data: bytes, methods: list[str], *, ended: bool) -> list[Answer]:
    """The answers in `data`, for requests of these methods, and for as many refusals as follow.

    `ended`: the connection was closed after it. Raises `h11.RemoteProtocolError` for what is no HTTP, and
    `AssertionError` for bytes after an answer that closes the connection.
    """
    answers: list[Answer] = []
    while data:
        method = methods[len(answers)] if len(answers) < len(methods) else "GET"
        client = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
        client.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
        client.send(h11.EndOfMessage())
        client.receive_data(data)
        answer, data = _read_one(client)
        assert answer.status or not ended, "the connection was closed amid a head"
        answers.append(answer)
    return answers


def _read_one(client: h11.Connection) -> tuple[Answer, bytes]:
    status, body = 0, b""
    while True:
        event = client.next_event()
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            rest, _ = client.trailing_data
            assert not (rest and client.our_state is h11.MUST_CLOSE), f"bytes after a last answer: {rest[:60]!r}"
            return Answer(status, body, True), rest
        elif event is h11.NEED_DATA:
            return Answer(status, body, False), b""


def requests_seen_by_h11(data: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """(method, target, body) of the requests that h11 finds in a stream, up to the first that it refuses."""
    server = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    server.receive_data(data)
    seen: list[tuple[bytes, bytes, bytes]] = []
    request, body = None, b""
    try:
        while True:
            event = server.next_event()
            if isinstance(event, h11.Request):
                if event.method == b"CONNECT":  # what follows would be another protocol's
                    return seen
                request, body = event, b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage) and request is not None:
                seen.append((request.method, request.target, body))
                server.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
                server.send(h11.EndOfMessage())
                if server.our_state is h11.MUST_CLOSE:
                    return seen
                server.start_next_cycle()
            else:  # more data, a pause, or the end
                return seen
    except h11.RemoteProtocolError:
        return seen
