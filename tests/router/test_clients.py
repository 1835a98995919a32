"""Other people's clients, h11 and curl, on what HTTP/1.1 allows: kept and pipelined connections, bodies of any form."""

import json
import re
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import h11
import pytest

from tests.router.harness import FakeEngine, Router, routing

pytestmark = pytest.mark.e2e
BODY: dict[str, Any] = {"model": "m", "prompt": "hello", "max_tokens": 3}
LARGE = {**BODY, "prompt": "x" * 20_000_000}
SERVING = "admission: open, max_body_bytes: 33554432, shutdown_s: 5"


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """A router that takes bodies of 32 MiB."""
    engines = [FakeEngine(), FakeEngine()]
    with routing(tmp_path_factory.mktemp("roomy"), engines, serving=SERVING) as router:
        yield router
        assert "Traceback" not in router.log.read_text()
    for engine in engines:
        engine.close()


class H11:
    """A client on one connection; h11 refuses whatever is no HTTP."""

    def __init__(self, router: Router) -> None:
        self.sock = router.connect()
        self.http = h11.Connection(h11.CLIENT)

    def send(self, *events: h11.Event) -> None:
        for event in events:
            self.sock.sendall(self.http.send(event) or b"")

    def head(self, **more: str) -> h11.Request:
        headers = {"Host": "x", "Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in more.items()}}
        return h11.Request(method="POST", target="/v1/completions", headers=list(headers.items()))

    def event(self) -> Any:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(self.sock.recv(65536))
        return event

    def answer(self) -> tuple[int, bytes]:
        response = self.event()
        assert isinstance(response, h11.Response)
        body = b""
        while isinstance(event := self.event(), h11.Data):
            body += bytes(event.data)
        assert isinstance(event, h11.EndOfMessage)
        return response.status_code, body

    def next(self) -> None:
        self.http.start_next_cycle()


def tokens_of(body: bytes) -> int:
    if body.startswith(b"data: "):
        assert body.endswith(b"data: [DONE]\n\n")
        return body.count(b"data: ") - 1
    return int(json.loads(body)["usage"]["completion_tokens"])


def test_h11_keeps_a_connection(roomy: Router) -> None:
    client = H11(roomy)
    for number in range(1, 6):
        data = json.dumps({**BODY, "max_tokens": number, "stream": number % 2 == 0}).encode()
        client.send(client.head(Content_Length=str(len(data))), h11.Data(data=data), h11.EndOfMessage())
        status, body = client.answer()
        assert (status, tokens_of(body)) == (200, number)
        client.next()
    assert client.http.our_state is h11.IDLE


def test_h11_sends_a_body_in_chunks_with_trailers(roomy: Router) -> None:
    client = H11(roomy)
    data = json.dumps(BODY).encode()
    client.send(client.head(Transfer_Encoding="chunked"))
    for at in range(0, len(data), 5):
        client.send(h11.Data(data=data[at : at + 5]))
    client.send(h11.EndOfMessage(headers=[("X-Checksum", "abc")]))
    assert client.answer()[0] == 200


def test_h11_waits_for_100_continue(roomy: Router) -> None:
    client = H11(roomy)
    data = json.dumps(BODY).encode()
    client.send(client.head(Content_Length=str(len(data)), Expect="100-continue"))
    assert client.http.they_are_waiting_for_100_continue is False
    told = client.event()
    assert isinstance(told, h11.InformationalResponse)
    assert told.status_code == 100
    client.send(h11.Data(data=data), h11.EndOfMessage())
    assert client.answer()[0] == 200


def test_h11_is_told_before_the_body_that_it_is_too_long(roomy: Router) -> None:
    client = H11(roomy)
    client.send(client.head(Content_Length="40000000", Expect="100-continue"))
    status, body = client.answer()
    assert status == 413
    assert "33554432" in json.loads(body)["error"]["message"]
    assert (
        client.http.their_state is h11.CLOSED or client.http.our_state is h11.MUST_CLOSE or client.sock.recv(1) == b""
    )


def test_h11_pipelines(roomy: Router) -> None:
    """Each answer is read by an h11 of its own: it does not send a second request before the first answer."""
    wanted = [2, 4, 1, 3]
    data = b""
    for number in wanted:
        sender, body = h11.Connection(h11.CLIENT), json.dumps({**BODY, "max_tokens": number}).encode()
        headers = [("Host", "x"), ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        request = h11.Request(method="POST", target="/v1/completions", headers=headers)
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            data += sender.send(event) or b""
    client = H11(roomy)
    client.sock.sendall(data)
    got, rest = [], b""
    for _ in wanted:
        client.http = h11.Connection(h11.CLIENT)
        client.http.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
        client.http.send(h11.EndOfMessage())
        if rest:
            client.http.receive_data(rest)
        got.append(tokens_of(client.answer()[1]))
        rest = client.http.trailing_data[0]
    assert got == wanted


def curl(router: Router, *args: str, body: object = None, path: str = "/v1/completions") -> tuple[str, bytes]:
    """(what curl wrote about the exchange, the body)."""
    data = json.dumps(BODY if body is None else body).encode()
    argv = ["curl", "-sS", "-v", "--max-time", "100", "-H", "Content-Type: application/json", "--data-binary", "@-"]
    done = subprocess.run([*argv, *args, f"{router.url}{path}"], input=data, capture_output=True, timeout=120)
    told = done.stderr.decode(errors="replace")
    assert done.returncode == 0, told
    return told, done.stdout


def test_curl_keeps_a_connection(roomy: Router) -> None:
    url = f"{roomy.url}/v1/models"
    done = subprocess.run(["curl", "-sS", "-v", url, url, url], capture_output=True, text=True, timeout=60)
    assert done.stderr.count("HTTP/1.1 200 OK") == 3
    assert len(re.findall(r"(?i)re-?using existing", done.stderr)) == 2


def test_curl_sends_a_body_in_chunks(roomy: Router) -> None:
    told, body = curl(roomy, "-H", "Transfer-Encoding: chunked")
    assert "> Transfer-Encoding: chunked" in told
    assert tokens_of(body) == 3


def test_curl_waits_for_100_continue_and_sends_20_megabytes(roomy: Router) -> None:
    told, body = curl(roomy, "-H", "Expect: 100-continue", body=LARGE)
    assert "< HTTP/1.1 100 Continue" in told
    assert tokens_of(body) == 3


@pytest.mark.parametrize("stream", [False, True])
def test_curl_in_http_1_0(roomy: Router, stream: bool) -> None:
    told, body = curl(roomy, "--http1.0", body={**BODY, "stream": stream})
    assert "chunked" not in told.lower()
    assert tokens_of(body) == 3


def test_curl_gets_heads_and_errors(roomy: Router) -> None:
    done = subprocess.run(["curl", "-sS", "-I", f"{roomy.url}/health"], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("HTTP/1.1 200 OK")
    told, body = curl(roomy, path="/v1/nothing")
    assert "< HTTP/1.1 404" in told
    assert json.loads(body)["error"]["code"] == 404
    told, body = curl(roomy, "-X", "DELETE")
    assert "< HTTP/1.1 405" in told
    assert "< allow: POST" in told
    told, _ = curl(roomy, "-H", "x-request-id: mine-7")
    assert "< x-request-id: mine-7" in told


def test_a_large_body_takes_no_more_memory_than_it_must(roomy: Router) -> None:
    """Four at a time, in pieces, and none of them complete: what is held is what was sent."""
    before = roomy.rss_bytes()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 30000000\r\n\r\n"
    socks = [roomy.connect() for _ in range(4)]
    for sock in socks:
        sock.sendall(head + b"x" * 8_000_000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    assert roomy.send("GET", "/health")[0] == 200
    assert roomy.rss_bytes() - before < 2 * 4 * 8_000_000 + (16 << 20)
    for sock in socks:
        sock.close()
