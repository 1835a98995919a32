"""Towards engines: their key, their certificates, and nothing of the client's own credentials."""

import contextlib
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from narwhal.fleet import open_fleet
from narwhal.router import ServeError, serve
from tests.router.certificates import NAMES, Pair, authority, issue
from tests.router.harness import FakeEngine, Router, eventually, routing, write_fleet

KEY = "an-engine-key-0123456789"
OF_THE_CLIENT = {
    "authorization": "Bearer a-client-key",
    "cookie": "session=a-client-cookie",
    "proxy-authorization": "Basic a-proxy-key",
    "x-api-key": "another-client-key",
    "x-forwarded-for": "192.0.2.7",
    "x-data-parallel-rank": "3",
    "x-request-id": "of-the-client",
}
BODIES = [
    ("/v1/completions", {"prompt": "x", "max_tokens": 2}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 2, "stream": True}),
    ("/v1/completions", {"prompt": ["x", "y"], "max_tokens": 2}),  # whole, to one engine
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
]


@contextlib.contextmanager
def engines_of(pair: Pair | None = None) -> Iterator[list[FakeEngine]]:
    context = None
    if pair is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pair.cert, pair.key)
    engines = [FakeEngine(tls=context), FakeEngine(tls=context)]
    try:
        yield engines
    finally:
        for engine in engines:
            engine.close()


def key_file(folder: Path) -> str:
    path = folder / "engines.key"
    path.write_text(KEY + "\n")
    path.chmod(0o600)
    return f"\n  api_key: {{file: {path}}}"


def heads(engines: list[FakeEngine]) -> list[dict[str, str]]:
    """The heads of every request that engines got, looks included."""
    looked = [engine.looked for engine in engines if engine.looked is not None]
    return [asked.headers for asked in [*looked, *(asked for engine in engines for asked in engine.asked)]]


@pytest.mark.parametrize("with_key", [True, False])
def test_engines_get_their_key_and_nothing_of_the_client(tmp_path: Path, with_key: bool) -> None:
    with engines_of() as engines:
        options: dict[str, Any] = {"engine_more": key_file(tmp_path)} if with_key else {}
        with routing(tmp_path, engines, **options) as router:
            for path, body in BODIES:
                assert router.send("POST", path, body, OF_THE_CLIENT)[0] == 200
            assert sum(len(engine.generations) for engine in engines) == 7
            seen = heads(engines)
            assert len(seen) == 9
            for head in seen:
                assert head.get("authorization") == (f"Bearer {KEY}" if with_key else None)
                assert set(head) <= {"host", "authorization", "content-type", "content-length", "x-request-id"}
            assert {head.get("x-request-id") for head in seen} == {"of-the-client", None}
            journal = [path.read_text() for path in (router.state_dir / "journal").iterdir()]
            for text in (
                router.log.read_text(),
                *journal,
                router.send("GET", "/narwhal/state", admin=True)[2].decode(),
            ):
                assert KEY not in text
                assert "a-client" not in text


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return authority(tmp_path_factory.mktemp("engines"), "engines-ca")


def engine_pair(ca: Pair, names: str = NAMES) -> Pair:
    return issue(ca, Pair(ca.cert.with_name("engine.pem"), ca.cert.with_name("engine.key")), names=names)


@pytest.mark.parametrize(
    ("names", "server_name"),
    [(NAMES, ""), ("subjectAltName=DNS:engines.example.org", ", server_name: engines.example.org")],
)
def test_engines_over_tls(ca: Pair, tmp_path: Path, names: str, server_name: str) -> None:
    with engines_of(engine_pair(ca, names)) as engines:
        more = f"\n  tls: {{ca: {ca.cert}{server_name}}}{key_file(tmp_path)}"
        with routing(tmp_path, engines, engine_more=more, engine_scheme="https") as router:
            for path, body in BODIES:
                assert router.send("POST", path, body)[0] == 200
            assert {head["authorization"] for head in heads(engines)} == {f"Bearer {KEY}"}
            connections = {asked.connection for asked in engines[0].asked}
            assert len(connections) < len(engines[0].asked)  # kept, not shaken hands for each


def never_live(router: Router, says: str) -> None:
    """The engines stay unused, clients get 503, and the log says why once for each engine."""
    eventually(lambda: len(re.findall(says, router.log.read_text())) == 2, says)
    assert [engine for engine in router.state()["engines"] if engine["state"] == "live"] == []
    status, _, body = router.send("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2})
    assert status == 503
    assert b"certificate" not in body
    assert len(re.findall(says, router.log.read_text())) == 2


@pytest.mark.parametrize(
    ("trusted", "names", "says"),
    [
        ("another", NAMES, "not trusted.*unable to get local issuer|not trusted.*self.signed|not trusted.*verif"),
        ("own", "subjectAltName=DNS:elsewhere.example.org", "not trusted.*(mismatch|not valid for)"),
    ],
)
def test_an_engine_that_cannot_prove_who_it_is_gets_nothing(
    ca: Pair, tmp_path: Path, trusted: str, names: str, says: str
) -> None:
    authority_pem = ca.cert if trusted == "own" else authority(tmp_path, "another-ca").cert
    with engines_of(engine_pair(ca, names)) as engines:
        more = f"\n  tls: {{ca: {authority_pem}}}{key_file(tmp_path)}"
        with routing(tmp_path, engines, wait=False, engine_more=more, engine_scheme="https") as router:
            router.wait_listening()
            never_live(router, says)
            assert heads(engines) == []


def test_without_an_authority_of_its_own_the_system_s_are_asked(ca: Pair, tmp_path: Path) -> None:
    with (
        engines_of(engine_pair(ca)) as engines,
        routing(tmp_path, engines, wait=False, engine_scheme="https") as router,
    ):
        router.wait_listening()
        never_live(router, "not trusted")
        assert heads(engines) == []


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("\n  tls: {ca: /nowhere/ca.pem}", r"engines\.tls\.ca: cannot use /nowhere/ca\.pem.*No such file"),
        ("\n  api_key: {file: /nowhere/key}", r"engines\.api_key: cannot read /nowhere/key"),
    ],
)
def test_what_cannot_be_read_stops_the_start(tmp_path: Path, more: str, says: str) -> None:
    fleet, _, _ = write_fleet(tmp_path, [1, 2], engine_more=more, engine_scheme="https")
    with pytest.raises(ServeError, match=says):
        serve(open_fleet(fleet), state_dir=tmp_path / "state")
