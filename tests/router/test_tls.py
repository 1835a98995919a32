"""TLS to clients: what is agreed on, what stalls, what is replaced while streams run."""

import asyncio
import re
import socket
import ssl
import subprocess
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import uvloop

from narwhal.fleet.model import Tls
from narwhal.router import sockets
from narwhal.router.tls import Certificate, CertificateError
from tests.router.certificates import Pair, authority, issue, openssl
from tests.router.harness import (
    END,
    PATIENCE_S,
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

RELOADS = "narwhal_tls_certificate_reloads_total"


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
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


def certificate_of(router: Router, ca: Pair) -> bytes:
    with tls(router, client(ca)) as sock:
        shown = sock.getpeercert(binary_form=True)
    assert shown
    return shown


def test_a_certificate_is_replaced_while_a_stream_runs(engines: list[FakeEngine], ca: Pair, tmp_path: Path) -> None:
    pair = issue(ca, Pair(tmp_path / "cert.pem", tmp_path / "cert.key"))
    go_on = threading.Event()

    def slow(asked: Asked, sock: socket.socket) -> None:
        sock.sendall(STREAM_HEAD + token(" first"))
        assert go_on.wait(PATIENCE_S)
        sock.sendall(token(" last") + END)

    with routing(tmp_path, engines, tls=pair.yaml) as router:
        engines[1].leg_2 = slow
        try:
            before = certificate_of(router, ca)
            with tls(router, client(ca)) as sock:
                sock.sendall(post({"prompt": "x", "max_tokens": 2, "stream": True}))
                assert b"first" in read_until(sock, b"first")
                issue(ca, pair)
                eventually(lambda: certificate_of(router, ca) != before, "the new certificate")
                replaced = certificate_of(router, ca)
                pair.cert.write_text("no certificate")
                failed = 'listener="clients",outcome="failed"'
                eventually(lambda: metric(router, RELOADS, failed) == 1, "the failed reload")
                assert certificate_of(router, ca) == replaced
                go_on.set()
                assert b"last" in read_until(sock, END)
            assert "the former certificate is still served" in router.log.read_text()
            assert metric(router, RELOADS, 'listener="clients",outcome="done"') >= 1
        finally:
            go_on.set()
            engines[1].reset()


def broken(served: Pair, folder: Path, how: str) -> Tls:
    """A certificate with something wrong about it."""
    cert, key = folder / "cert.pem", folder / "cert.key"
    cert.write_bytes(served.cert.read_bytes())
    key.write_bytes(served.key.read_bytes())
    key.chmod(0o644 if how == "wide" else 0o600)
    if how == "missing":
        cert.unlink()
    elif how == "another's":
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key))
    elif how == "encrypted":
        openssl("ec", "-in", str(served.key), "-aes256", "-passout", "pass:x", "-out", str(key))
        key.chmod(0o600)
    elif how == "garbage":
        cert.write_text("no certificate")
    return Tls(cert=str(cert), key=str(key))


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("missing", "No such file"),
        ("another's", "KEY_VALUES_MISMATCH"),
        ("encrypted", "without a passphrase"),
        ("garbage", "not a certificate chain"),
        ("wide", "chmod 640"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_refused_with_the_reason(
    served: Pair, tmp_path: Path, how: str, says: str
) -> None:
    with pytest.raises(CertificateError, match=says) as refused:
        Certificate(broken(served, tmp_path, how), "routers.tls")
    assert str(refused.value).startswith("routers.tls")
    assert str(tmp_path) in str(refused.value)


def test_a_half_written_pair_is_not_taken_up_before_it_stands_still(ca: Pair, tmp_path: Path) -> None:
    pair = issue(ca, Pair(tmp_path / "cert.pem", tmp_path / "cert.key"))
    certificate = Certificate(Tls(cert=str(pair.cert), key=str(pair.key)), "routers.tls")
    first = certificate.now
    old_key = pair.key.read_bytes()
    issue(ca, pair)
    new_key = pair.key.read_bytes()
    pair.key.write_bytes(old_key)  # the certificate is new, the key is not yet
    certificate.check()
    pair.key.write_bytes(new_key + b"\n")
    certificate.check()
    assert (certificate.now, certificate.failures) == (first, 0)
    certificate.check()
    assert certificate.now is not first
    assert (certificate.reloads, certificate.failures) == (1, 0)


@pytest.mark.parametrize("days", [1, 20000])
def test_the_end_is_what_openssl_reads(ca: Pair, tmp_path: Path, days: int) -> None:
    """Beyond 2049 a certificate writes its times in another form."""
    pair = issue(ca, Pair(tmp_path / "cert.pem", tmp_path / "cert.key"), days=days)
    said = subprocess.run(
        ["openssl", "x509", "-in", str(pair.cert), "-noout", "-enddate"], capture_output=True, text=True, check=True
    ).stdout
    expected = ssl.cert_time_to_seconds(said.strip().partition("=")[2])
    certificate = Certificate(Tls(cert=str(pair.cert), key=str(pair.key)), "routers.tls")
    assert certificate.now.expires.timestamp() == expected


class Greeting(asyncio.Protocol):
    """Says hello to whoever has shaken hands."""

    def connection_made(self, transport: Any) -> None:
        transport.write(b"hello")


class Flood(asyncio.Protocol):
    """Writes until it is told to pause, and remembers how much waited then."""

    waited_bytes = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        asyncio.get_running_loop().call_soon(self.more)

    def more(self) -> None:
        if not Flood.waited_bytes:
            self.transport.write(b"x" * 16384)
            asyncio.get_running_loop().call_soon(self.more)

    def pause_writing(self) -> None:
        Flood.waited_bytes = self.transport.get_write_buffer_size()


async def settled(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not met():
            await asyncio.sleep(0.01)


def serve_greetings(
    served: Pair,
    play: Callable[[sockets.TlsServer, int], Coroutine[Any, Any, None]],
    make: sockets.Make = Greeting,
) -> None:
    async def run() -> None:
        listener = sockets.bind_tcp("127.0.0.1", 0)
        certificate = Certificate(Tls(cert=str(served.cert), key=str(served.key)), "routers.tls")
        server = sockets.TlsServer(listener, certificate, make, "clients")
        try:
            await play(server, listener.getsockname()[1])
        finally:
            server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def test_a_handshake_that_stalls_is_cut(served: Pair, ca: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "HANDSHAKE_S", 0.2)

    async def play(server: sockets.TlsServer, port: int) -> None:
        silent, _ = await asyncio.open_connection("127.0.0.1", port)
        assert await silent.read() == b""
        await settled(lambda: server.open_handshakes == 0)
        assert server.handshakes == {"done": 0, "failed": 0, "timeout": 1}

    serve_greetings(served, play)


def test_handshakes_beyond_the_cap_wait_for_their_turn(served: Pair, ca: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "HANDSHAKE_S", PATIENCE_S)
    monkeypatch.setattr(sockets, "MAX_HANDSHAKES", 2)

    async def play(server: sockets.TlsServer, port: int) -> None:
        stalled = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await settled(lambda: server.open_handshakes == 2)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        asked = asyncio.create_task(writer.start_tls(client(ca), server_hostname="localhost"))
        behind = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert server.open_handshakes == 2
        assert not asked.done()
        stalled[0][1].close()
        await asked
        assert await reader.readexactly(5) == b"hello"
        await settled(lambda: server.handshakes == {"done": 1, "failed": 1, "timeout": 0})
        for _, other in [*stalled, *behind, (reader, writer)]:
            other.close()

    serve_greetings(served, play)


def test_a_closed_server_gives_up_what_it_began(served: Pair) -> None:
    async def play(server: sockets.TlsServer, port: int) -> None:
        silent, _ = await asyncio.open_connection("127.0.0.1", port)
        await settled(lambda: server.open_handshakes == 1)
        server.close()
        assert await silent.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)

    serve_greetings(served, play)


def test_little_waits_for_a_client_that_does_not_read(served: Pair, ca: Pair) -> None:
    async def play(server: sockets.TlsServer, port: int) -> None:
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client(ca), server_hostname="localhost", limit=1
        )
        await settled(lambda: Flood.waited_bytes > 0)
        assert Flood.waited_bytes <= 2 * sockets.WRITE_HIGH_BYTES
        writer.transport.abort()

    serve_greetings(served, play, Flood)
