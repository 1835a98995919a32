"""TLS to clients: what is agreed on, what stalls, what is replaced while streams run."""

import re
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.router.certificates import Pair, authority, issue
from tests.router.harness import (
    END,
    STREAM_HEAD,
    Asked,
    FakeEngine,
    Router,
    eventually,
    post,
    read_all,
    read_until,
    routing,
    token,
)


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def served(ca: Pair) -> Pair:
    return issue(ca, Pair(ca.cert.with_name("served.pem"), ca.cert.with_name("served.key")))


@pytest.fixture(scope="module")
def engines() -> Iterator[list[FakeEngine]]:
    pair = [FakeEngine(), FakeEngine()]
    yield pair
    for engine in pair:
        engine.close()


@pytest.fixture(scope="module")
def router(engines: list[FakeEngine], served: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    with routing(tmp_path_factory.mktemp("tls"), engines, tls=served.yaml) as running:
        yield running


def client(ca: Pair, *, alpn: tuple[str, ...] = ("h2", "http/1.1"), newest: bool = True) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(ca.cert))
    context.set_alpn_protocols(list(alpn))
    if not newest:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def tls(router: Router, context: ssl.SSLContext) -> ssl.SSLSocket:
    return context.wrap_socket(router.connect(), server_hostname="localhost")


def metric(router: Router, name: str, labels: str = 'listener="clients"') -> float:
    page = router.send("GET", "/metrics", admin=True)[2].decode()
    found = re.search(rf"^{re.escape(f'{name}{{{labels}}}')} (\S+)$", page, re.MULTILINE)
    assert found is not None, (name, page)
    return float(found[1])


def handshakes(router: Router, outcome: str) -> float:
    return metric(router, "narwhal_tls_handshakes_total", f'listener="clients",outcome="{outcome}"')


@pytest.mark.parametrize(("newest", "version"), [(True, "TLSv1.3"), (False, "TLSv1.2")])
def test_a_stream_over_tls(router: Router, ca: Pair, newest: bool, version: str) -> None:
    with tls(router, client(ca, newest=newest)) as sock:
        assert (sock.version(), sock.selected_alpn_protocol()) == (version, "http/1.1")
        for _ in range(2):  # on one connection
            sock.sendall(post({"prompt": "x", "max_tokens": 3, "stream": True}))
            assert read_until(sock, END).count(b"text_completion") == 3


def test_a_long_prompt_and_a_long_answer_cross_tls_whole(router: Router, engines: list[FakeEngine], ca: Pair) -> None:
    piece = token("x" * 1000)

    def much(asked: Asked, sock: socket.socket) -> None:
        sock.sendall(STREAM_HEAD + piece * 2000 + END)

    engines[1].leg_2 = much
    try:
        with tls(router, client(ca)) as sock:
            sock.sendall(post({"prompt": "y" * 60000, "max_tokens": 2000, "stream": True}))
            assert read_until(sock, END).count(piece) == 2000
            assert len(engines[0].generations[-1].body["prompt"]) == 60000
    finally:
        engines[1].reset()


def test_http_2_alone_is_not_agreed_on(router: Router, ca: Pair) -> None:
    with tls(router, client(ca, alpn=("h2",))) as sock:
        assert sock.selected_alpn_protocol() is None


def test_what_is_older_than_tls_1_2_is_refused(router: Router, ca: Pair) -> None:
    before = handshakes(router, "failed")
    context = client(ca)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError):
        tls(router, context)
    eventually(lambda: handshakes(router, "failed") > before, "the count of failed handshakes")


def test_plain_http_on_the_tls_port_is_no_request(router: Router) -> None:
    before = handshakes(router, "failed")
    with router.connect() as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" not in read_all(sock)
    eventually(lambda: handshakes(router, "failed") > before, "the count of failed handshakes")


def test_the_end_of_the_certificate_is_a_metric(router: Router, served: Pair) -> None:
    ends = datetime.fromtimestamp(metric(router, "narwhal_tls_certificate_expiry_timestamp_seconds"), UTC)
    assert 0 < (ends - datetime.now(UTC)).total_seconds() <= 2 * 86400
