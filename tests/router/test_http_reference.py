"""`docs/reference/http.md` says what the code does."""

import json
import re
from pathlib import Path

import pytest

from narwhal.router import http, repeats
from narwhal.router.operating import BODIES
from narwhal.router.routes import CHAT, COMPLETIONS, ENCODINGS, FORBIDDEN, FORBIDDEN_ARGUMENTS, ROUTES, STATEFUL
from tests.router.harness import FakeEngine, Router

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "http.md").read_text()


_CLIENT_ROUTE = r"^\| `(/[a-z/0-9]+)(?:/\{id\})?` \| ((?:GET|POST)[A-Z, ]*) \|"


def part(name: str) -> str:
    """The text between a mark and the next end."""
    found = re.search(rf"<!-- {re.escape(name)} -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert found is not None, name
    return found[1]


def named(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@pytest.mark.parametrize("route", ROUTES)
def test_the_fields_are_the_ones_that_engines_get(route: str) -> None:
    both = named(part("fields: both")) if route in (COMPLETIONS, CHAT) else []
    listed = both + [name for name in named(part(f"fields: {route}")) if name not in ENCODINGS]
    assert len(listed) == len(set(listed))
    assert set(listed) == ROUTES[route].fields


def test_what_is_refused_is_listed_with_its_reason() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|$", part("forbidden"), re.MULTILINE))
    assert rows == FORBIDDEN
    assert dict(re.findall(r"^\| `(\w+)` \| (.+?) \|$", part("stateful"), re.MULTILINE)) == STATEFUL
    [further] = re.findall(r"refused there as well: (.+?)\.", PAGE)
    assert set(named(further)) == FORBIDDEN_ARGUMENTS.keys() - FORBIDDEN.keys()


def test_the_limits_are_the_code_s() -> None:
    assert f"{http.HEAD_S:g} s for its head, {http.BODY_S:g} s for all of it" in PAGE
    assert f"closed after {http.IDLE_S:g} s of silence" in PAGE
    assert f"up to {http.MAX_PIPELINED} requests wait" in PAGE
    assert f"reads nothing for {http.SEND_S:g} s" in PAGE


def test_every_admin_route_that_is_listed_is_there(router: Router) -> None:
    listed = re.findall(r"^\| `(/[a-z/.]*)` \| (GET|POST) \|", part("admin"), re.MULTILINE)
    assert len(listed) == 26
    for path, method in listed:
        other = "POST" if method == "GET" else "GET"
        status, headers, _ = router.send(other, path, {} if other == "POST" else None, admin=True)
        assert (status, headers["allow"]) == (405, method)


def test_how_long_keys_are_remembered_is_said() -> None:
    text = " ".join(PAGE.split())
    assert f"remembered for {repeats.KEPT_S:g} s, the last {repeats.MOST:,} of them" in text


def test_every_order_is_listed() -> None:
    listed = dict(re.findall(r"^\| `(/narwhal/[a-z]+)` \| POST \| `\{(.*?)\}`", part("admin"), re.MULTILINE))
    assert listed.keys() == BODIES.keys()
    for path, fields in listed.items():
        assert re.findall(r'"(\w+)"', fields) == list(BODIES[path].__struct_fields__), path


def test_every_client_route_that_is_listed_is_there(router: Router, decode: FakeEngine) -> None:
    listed = re.findall(_CLIENT_ROUTE, part("clients"), re.MULTILINE)
    assert {path for path, _ in listed} == {*ROUTES, "/v1/models", "/health", "/ready"}
    for path, methods in listed:
        status, headers, body = router.send("DELETE", path)
        assert status == 405, path
        assert headers["allow"].split(", ")[0] == methods.split(", ")[0]
        assert json.loads(body)["error"]["code"] == 405
