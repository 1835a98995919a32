"""The live page in a real browser, before a real router: what it shows, when it changes, what it asks for."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.page.chromium import Browser, Page
from tests.router.harness import FakeEngine, Router, routing, start_router

pytestmark = pytest.mark.e2e
OVERFLOW = "document.documentElement.scrollWidth - innerWidth"
SECRET = "read-0123456789abcdef"


@pytest.fixture(scope="module")
def engines() -> Iterator[list[FakeEngine]]:
    four = [FakeEngine() for _ in range(4)]
    yield four
    for engine in four:
        engine.close()


@pytest.fixture(scope="module")
def router(engines: list[FakeEngine], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    with routing(tmp_path_factory.mktemp("router"), engines) as started:
        yield started


def url(router: Router) -> str:
    return f"http://127.0.0.1:{router.admin_port}/"


def engines_of(page: Page, role: str) -> list[str]:
    return list(page.js(f"[...document.querySelectorAll('#{role} .engine b')].map((one) => one.textContent)"))


def live(page: Page) -> None:
    page.wait(lambda: page.text("#link-word") == "live" and engines_of(page, "decode") != [], "live")


def move(router: Router, engine: str, role: str) -> None:
    status, _, body = router.send("POST", "/narwhal/move", {"engine": engine, "role": role}, admin=True)
    assert status == 200, body


def test_it_shows_the_fleet_and_a_move_and_asks_nobody_else(router: Router, browser: Browser) -> None:
    page = browser.open(url(router))
    live(page)
    assert engines_of(page, "prefill") == ["local/0", "local/1"]
    assert engines_of(page, "decode") == ["local/2", "local/3"]
    assert page.text("#split") == "2 prefill, 2 decode"
    assert page.js("document.querySelectorAll('#matrix td.in').length") == 4
    assert page.js("document.querySelectorAll('#prefill .badge').length") == 2
    assert page.text("#moves") == ""
    assert page.text("#said") == ""
    move(router, "local/1", "decode")
    try:
        page.wait(lambda: "local/1" in engines_of(page, "decode"), "the engine in its new role")
        page.wait(lambda: "local/1 prefill → decode" in page.text("#moves li"), "the move and its direction")
        page.wait(lambda: "1 prefill, 3 decode" in page.text("#split"), "the split")
        page.wait(lambda: page.js("document.querySelectorAll('#matrix td.in').length") == 3, "the pairs")
        assert "local/1 moves from prefill to decode" in page.js("document.getElementById('said').textContent")
        assert page.js("document.getElementById('said').ariaLive") == "polite"
    finally:
        move(router, "local/1", "prefill")
    page.wait(lambda: engines_of(page, "prefill") == ["local/0", "local/1"], "the engine back again")
    assert page.urls() != []
    assert {one for one in page.urls() if not one.startswith(url(router))} == set()
    assert page.troubles() == []


def test_what_operators_write_stays_text(router: Router, browser: Browser) -> None:
    page = browser.open(url(router))
    live(page)
    reason = "<img src=x onerror=document.title='owned'><script>1</script> & <b>"
    assert router.send("POST", "/narwhal/hold", {"reason": reason}, admin=True)[0] == 200
    try:
        page.wait(lambda: reason in page.text("#notices"), "the reason of the hold")
        router.send("POST", "/narwhal/swap", {"a": "local/0", "b": "local/2"}, admin=True)
        page.wait(lambda: "hold" in page.text("#held"), "the order that was held")
        assert page.js("document.querySelectorAll('main img, main script, #notices img, #notices b').length") == 0
    finally:
        router.send("POST", "/narwhal/unhold", {}, admin=True)
    page.wait(lambda: page.text("#notices") == "", "no notice")
    assert page.troubles() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_in_either_scheme(router: Router, browser: Browser, scheme: str) -> None:
    page = browser.open(url(router), width=390, height=844, media={"prefers-color-scheme": scheme})
    live(page)
    page.wait(lambda: page.text("#moves") != "" and page.text("#changes") != "", "lists that are not empty")
    assert page.js(OVERFLOW) <= 0
    ground = page.js("getComputedStyle(document.body).backgroundColor")
    assert (sum(json.loads(ground.replace("rgb(", "[").replace(")", "]"))) < 3 * 128) == (scheme == "dark")


def test_it_can_be_used_by_keyboard_and_keeps_the_theme(router: Router, browser: Browser) -> None:
    page = browser.open(url(router), media={"prefers-color-scheme": "light", "prefers-reduced-motion": "reduce"})
    live(page)
    focused = []
    for _ in range(4):
        page.key("Tab", 9)
        focused.append(page.js("document.activeElement.id || document.activeElement.className"))
    assert focused[:2] == ["skip", "theme"]
    page.js("document.getElementById('theme').focus()")
    for theme in ("light", "dark"):
        page.key("Enter", 13, "\r")
        assert page.text("#theme") == f"Theme: {theme}"
    page.js("location.reload()")
    page.wait(lambda: page.text("#theme") == "Theme: dark" and page.text("#link-word") == "live", "the theme, kept")
    assert page.js("getComputedStyle(document.querySelector('.engine')).animationName") == "none"
    page.js("localStorage.clear()")
    assert page.troubles() == []


def test_a_router_that_is_gone_is_said_and_found_again(
    engines: list[FakeEngine], tmp_path: Path, browser: Browser
) -> None:
    with routing(tmp_path, engines) as router:
        page = browser.open(url(router))
        live(page)
    page.wait(lambda: page.text("#link-word") == "connection lost", "the loss")
    assert "lost" in page.text("#lost")
    assert page.js("document.querySelector('main').classList.contains('stale')") is True
    again = start_router(tmp_path, tmp_path / "fleet.yaml", router.port, router.admin_port)
    try:
        page.wait(lambda: page.text("#link-word") == "live", "the router again")
        assert page.text("#lost") == ""
        assert page.js("document.querySelector('main').classList.contains('stale')") is False
    finally:
        again.stop()


def test_it_asks_for_a_token_where_one_is_needed(engines: list[FakeEngine], tmp_path: Path, browser: Browser) -> None:
    secret = tmp_path / "token"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    admin = f", tokens: [{{name: r, scope: read, token: {{file: {secret}}}}}]"
    with routing(tmp_path, engines, admin=admin, token=SECRET) as router:
        page = browser.open(url(router))
        page.wait(lambda: page.js("!document.getElementById('ask').hidden"), "the question")
        assert page.js("document.querySelector('main').hidden") is True
        for text, shown in (("not-the-token-0123", "not known"), (SECRET, "")):
            page.call("Input.insertText", text=text)
            page.key("Enter", 13, "\r")
            page.wait(lambda shown=shown: shown in page.text("#ask-why"), "what is wrong with it")  # type: ignore[misc]
        live(page)
        assert page.js("document.getElementById('ask').hidden") is True
        assert page.js("[sessionStorage.length, localStorage.length - ('narwhal-theme' in localStorage)]") == [1, 0]
        assert not [one for one in page.urls() if SECRET in one]
