"""Who may ask what on the admin listeners: each route, by each credential, over each listener."""

import contextlib
import grp
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from narwhal.fleet import open_fleet
from narwhal.router import ServeError, serve
from narwhal.router.live import PATHS
from tests.router.harness import PATIENCE_S, FakeEngine, Router, connect_unix, eventually, routing, write_fleet

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "http.md").read_text()
ROUTES = re.findall(r"^\| `(/[a-z/.]*)` \| (GET|POST) \|", PAGE[PAGE.index("<!-- admin -->") :], re.MULTILINE)
OPEN = ("/health", "/ready", *PATHS)
FOLLOW = "/narwhal/follow"
SECRETS = {scope: f"{scope}-0123456789abcdef" for scope in ("read", "operate", "replicate")}
CREDENTIALS = {
    "none": None,
    "wrong": "Bearer 0123456789abcdef0123",
    "empty": "Bearer ",
    "basic": "Basic " + SECRETS["operate"],
    "read": "Bearer " + SECRETS["read"],
    "operate": "bearer " + SECRETS["operate"],
    "replicate": "Bearer " + SECRETS["replicate"],
}
NOBODY = 65534


@pytest.fixture(scope="module")
def engines() -> Iterator[list[FakeEngine]]:
    pair = [FakeEngine(), FakeEngine()]
    yield pair
    for engine in pair:
        engine.close()


def tokens(folder: Path, mode: int = 0o600) -> str:
    """`routers.admin.tokens` of a fleet file, one for each scope."""
    listed = []
    for scope, text in SECRETS.items():
        path = folder / scope
        path.write_text(text + "\n")
        path.chmod(mode)
        listed.append(f"{{name: {scope}, scope: {scope}, token: {{file: {path}}}}}")
    return f", tokens: [{', '.join(listed)}]"


@pytest.fixture(scope="module")
def guarded(engines: list[FakeEngine], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    folder = tmp_path_factory.mktemp("guarded")
    with routing(folder, engines, admin=tokens(folder), token=SECRETS["operate"]) as router:
        yield router


@pytest.fixture(scope="module")
def unguarded(engines: list[FakeEngine], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    with routing(tmp_path_factory.mktemp("unguarded"), engines) as router:
        yield router


def ask(
    router: Router, listener: str, method: str, path: str, headers: dict[str, str]
) -> tuple[int, dict[str, str], bytes]:
    """One request. What is posted is no order, so that a caller who may give one gets 400 and changes nothing."""
    connection = http.client.HTTPConnection("127.0.0.1", router.admin_port, timeout=PATIENCE_S)
    if listener == "unix":
        connection.sock = connect_unix(router.admin_socket)
    with contextlib.closing(connection):
        connection.request(method, path, b"[]" if method == "POST" else None, headers)
        answer = connection.getresponse()
        endless = answer.getheader("content-type") == "text/event-stream"
        return (
            answer.status,
            {key.lower(): value for key, value in answer.getheaders()},
            b"" if endless else answer.read(),
        )


def expected(listener: str, path: str, method: str, credential: str, *, declared: bool) -> int:
    allowed = 400 if method == "POST" else 404 if path == FOLLOW else 200  # there is nothing to follow here
    if listener == "unix" or path in OPEN:
        return allowed
    if not declared:
        return 403 if method == "POST" or path == FOLLOW else 200
    if credential in ("none", "wrong", "empty", "basic"):
        return 401
    if path == FOLLOW:
        return allowed if credential == "replicate" else 403
    return 403 if method == "POST" and credential != "operate" else allowed


def test_there_are_routes_of_both_kinds() -> None:
    assert {method for _, method in ROUTES} == {"GET", "POST"}
    assert len(ROUTES) >= 10


@pytest.mark.parametrize("listener", ["tcp", "unix"])
@pytest.mark.parametrize("credential", CREDENTIALS)
@pytest.mark.parametrize("declared", [True, False])
def test_each_route_answers_each_caller_as_its_scope_says(
    guarded: Router, unguarded: Router, listener: str, credential: str, declared: bool
) -> None:
    router = guarded if declared else unguarded
    said = CREDENTIALS[credential]
    headers = {} if said is None else {"authorization": said}
    for path, method in ROUTES:
        status, answered, body = ask(router, listener, method, path, headers)
        assert status == expected(listener, path, method, credential, declared=declared), (path, method)
        if status in (401, 403):
            assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
            assert answered.get("www-authenticate", "").startswith("Bearer") == (
                declared or status == 401 or path == FOLLOW
            )
            assert "state" not in answered


def test_a_refusal_says_what_would_do(guarded: Router, unguarded: Router) -> None:
    _, headers, body = ask(guarded, "tcp", "POST", "/narwhal/hold", {"authorization": str(CREDENTIALS["read"])})
    assert headers["www-authenticate"] == 'Bearer realm="narwhal", error="insufficient_scope", scope="operate"'
    assert json.loads(body)["error"]["message"] == "token read may not do this: it needs the scope 'operate'"
    _, headers, _ = ask(guarded, "tcp", "GET", "/narwhal/state", {"authorization": str(CREDENTIALS["wrong"])})
    assert headers["www-authenticate"] == 'Bearer realm="narwhal", error="invalid_token"'
    _, headers, body = ask(unguarded, "tcp", "POST", "/narwhal/hold", {})
    message = json.loads(body)["error"]["message"]
    assert "routers.admin.tokens" in message
    assert str(unguarded.admin_socket) in message


@pytest.mark.parametrize("listener", ["tcp", "unix"])
@pytest.mark.parametrize("credential", ["none", "operate"])
def test_no_page_gives_orders_whatever_it_bears(guarded: Router, listener: str, credential: str) -> None:
    said = CREDENTIALS[credential]
    headers = {"origin": "https://evil.example"} | ({} if said is None else {"authorization": said})
    assert ask(guarded, listener, "POST", "/narwhal/hold", headers)[0] == 403


def test_a_name_that_is_not_loopback_gets_nothing_even_with_a_token(guarded: Router) -> None:
    headers = {"authorization": str(CREDENTIALS["operate"]), "host": "evil.example"}
    status, _, body = ask(guarded, "tcp", "GET", "/narwhal/state", headers)
    assert status == 403
    assert b"engines" not in body


def test_orders_are_logged_by_name_and_tokens_are_nowhere(guarded: Router) -> None:
    assert guarded.send("POST", "/narwhal/unhold", {}, admin=True)[0] == 200
    log = guarded.log.read_text()
    assert "token operate asks for /narwhal/unhold" in log
    written = [log, *(path.read_text() for path in (guarded.state_dir / "journal").iterdir())]
    pages = [guarded.send("GET", path, admin=True)[2].decode() for path in ("/narwhal/state", "/metrics")]
    for text in (*written, *pages):
        assert not [secret for secret in SECRETS.values() if secret in text]


def test_refusals_are_counted(guarded: Router) -> None:
    def refused() -> float:
        page = guarded.send("GET", "/metrics", admin=True)[2].decode()
        found = re.search(r"^narwhal_admin_refused_total (\S+)$", page, re.MULTILINE)
        assert found is not None
        return float(found[1])

    before = refused()
    ask(guarded, "tcp", "GET", "/narwhal/state", {})
    ask(guarded, "tcp", "POST", "/narwhal/hold", {"authorization": str(CREDENTIALS["read"])})
    assert refused() == before + 2


@pytest.mark.parametrize(
    ("admin", "says"),
    [
        (", tokens: [{name: a, scope: read, token: {env: NARWHAL_TEST_UNSET}}]", "NARWHAL_TEST_UNSET is not set"),
        (", tokens: [{name: a, scope: read, token: {file: /nowhere/token}}]", "cannot read /nowhere/token"),
        (", group: no-such-group", "there is no group 'no-such-group'"),
        (", socket: /proc/narwhal.sock", "cannot listen on /proc/narwhal.sock"),
    ],
)
def test_what_cannot_be_had_stops_the_start_with_its_key(tmp_path: Path, admin: str, says: str) -> None:
    fleet, _, _ = write_fleet(tmp_path, [1, 2], admin=admin)
    with pytest.raises(ServeError, match=re.escape(says)) as refused:
        serve(open_fleet(fleet), state_dir=tmp_path / "state")
    assert "routers.admin." in str(refused.value)


def test_a_token_that_others_can_read_or_guess_stops_the_start(tmp_path: Path) -> None:
    fleet, _, _ = write_fleet(tmp_path, [1, 2], admin=tokens(tmp_path, mode=0o644))
    with pytest.raises(ServeError, match="chmod 640"):
        serve(open_fleet(fleet), state_dir=tmp_path / "state")
    for scope in SECRETS:
        (tmp_path / scope).chmod(0o640)
    (tmp_path / "read").write_text("0123456789abcde\n")
    with pytest.raises(ServeError, match="fewer than 16 characters") as refused:
        serve(open_fleet(fleet), state_dir=tmp_path / "state")
    assert "0123456789abcde" not in str(refused.value)


def as_nobody(path: Path, *more: str) -> str:
    """The status that user `nobody` gets for the state over a Unix socket; 000: not even a connection."""
    argv = ["setpriv", "--reuid", str(NOBODY), *more, "curl", "--silent", "--output", "/dev/null"]
    argv += ["--max-time", str(int(PATIENCE_S)), "--write-out", "%{http_code}", "--unix-socket", str(path)]
    done = subprocess.run([*argv, "http://localhost/narwhal/state"], capture_output=True, text=True, timeout=120)
    return done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_unix_socket_asks_the_kernel_who_is_there(engines: list[FakeEngine], tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as open_to_all:
        os.chmod(open_to_all, 0o755)
        path = Path(open_to_all) / "admin.sock"
        alone = ("--regid", "12345", "--clear-groups")
        with routing(tmp_path, engines, admin=f", socket: {path}", admin_socket=path):
            assert as_nobody(path, *alone) == "000"  # the file's mode keeps others out
            path.chmod(0o666)
            assert as_nobody(path, *alone) == "403"  # and so does the router, were it otherwise
        assert not path.exists()
        gid = 4
        admin = f", socket: {path}, group: {grp.getgrgid(gid).gr_name}"
        with routing(tmp_path, engines, admin=admin, admin_socket=path):
            assert as_nobody(path, *alone) == "000"
            assert as_nobody(path, "--regid", str(gid), "--clear-groups") == "200"
            assert as_nobody(path, "--regid", "12345", "--groups", str(gid)) == "200"
            path.chmod(0o666)
            assert as_nobody(path, *alone) == "403"


def test_a_killed_router_s_socket_is_replaced_and_a_living_one_s_is_not(
    engines: list[FakeEngine], tmp_path: Path
) -> None:
    folder = tmp_path / ("deep" * 30)  # longer than the kernel lets a socket's name be
    folder.mkdir()
    path = folder / "admin.sock"
    with routing(tmp_path, engines, admin=f", socket: {path}", admin_socket=path) as router:
        router.process.kill()
        router.process.wait()
        assert path.is_socket()
    with routing(tmp_path, engines, admin=f", socket: {path}", admin_socket=path) as router:
        assert ask(router, "unix", "GET", "/narwhal/state", {})[0] == 200
        other = tmp_path / "other"
        other.mkdir()
        fleet, _, _ = write_fleet(other, [engine.port for engine in engines], admin=f", socket: {path}")
        with pytest.raises(ServeError, match="another router listens there"):
            serve(open_fleet(fleet), state_dir=other)
        assert ask(router, "unix", "GET", "/narwhal/state", {})[0] == 200
    assert not path.exists()
    path.write_text("something of value")
    with pytest.raises(ServeError, match="not a socket"):
        serve(open_fleet(fleet), state_dir=other)
    assert path.read_text() == "something of value"


def test_one_user_s_connection_is_not_another_s(unguarded: Router) -> None:
    """The peer is asked on each connection; two requests of one are served alike."""
    with connect_unix(unguarded.admin_socket) as sock:
        for _ in range(2):
            sock.sendall(b"POST /narwhal/unhold HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}")
            assert b" 200 " in _head(sock)


def _head(sock: socket.socket) -> bytes:
    data = b""
    while b"}}" not in data:
        data += sock.recv(65536)
    return data


def test_tokens_are_exchanged_by_a_reload_and_a_bad_one_keeps_the_former(
    engines: list[FakeEngine], tmp_path: Path
) -> None:
    secret = tmp_path / "read"
    with routing(tmp_path, engines, admin=tokens(tmp_path), token=SECRETS["operate"]) as router:

        def status(text: str) -> int:
            return ask(router, "tcp", "GET", "/narwhal/state", {"authorization": f"Bearer {text}"})[0]

        assert status(SECRETS["read"]) == 200
        secret.write_text("another-0123456789abcdef\n")
        router.process.send_signal(signal.SIGHUP)
        eventually(lambda: status("another-0123456789abcdef") == 200, "the new token")
        assert status(SECRETS["read"]) == 401
        secret.write_text("short\n")
        router.process.send_signal(signal.SIGHUP)
        eventually(lambda: "fewer than 16 characters" in router.log.read_text(), "the refusal")
        assert (status("short"), status("another-0123456789abcdef")) == (401, 200)
        assert status(SECRETS["operate"]) == 200
