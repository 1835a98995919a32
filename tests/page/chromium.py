"""Headless Chromium, steered over its own debugging protocol by a pipe: no driver, no port, no package from PyPI."""

import base64
import contextlib
import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.debian import install
from tests.router.harness import PATIENCE_S, eventually

Json = dict[str, Any]
_SWITCHES = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-sync",
    "--disable-features=Translate,OptimizationHints,MediaRouter", "--hide-scrollbars", "--force-device-scale-factor=1",
    "--remote-debugging-pipe",
)  # fmt: skip


def provide() -> str:
    """Chromium's path; it is installed where it is missing and can be, else the tests skip and say so."""
    found = _found()
    if found is None and (trouble := install("chromium")):
        pytest.skip(f"needs chromium: {trouble}")
    return found or str(_found())


def _found() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """A process of Chromium. Every event it tells is kept in `Page.events`."""

    def __init__(self, process: "subprocess.Popen[bytes]", to: int, came: int) -> None:
        self.process = process
        self.pages: dict[str, Page] = {}
        self._to = to
        self._number = 0
        self._answers: dict[int, queue.Queue[Json]] = {}
        threading.Thread(target=self._read, args=(came,), daemon=True).start()

    def call(self, method: str, session: str = "", **params: Any) -> Json:
        """One command, and its answer."""
        self._number += 1
        answer = self._answers[self._number] = queue.Queue()
        message = {"id": self._number, "method": method, "params": params}
        os.write(self._to, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        said = answer.get(timeout=PATIENCE_S)
        assert "error" not in said, (method, said["error"])
        return dict(said["result"])

    def _read(self, came: int) -> None:
        with os.fdopen(came, "rb") as stream:
            kept = b""
            while data := stream.read1(65536):
                *whole, kept = (kept + data).split(b"\0")
                for text in whole:
                    message = json.loads(text)
                    if "id" in message:
                        self._answers.pop(message["id"]).put(message)
                    elif (page := self.pages.get(message.get("sessionId", ""))) is not None:
                        page.events.append(message)

    def open(self, url: str, *, width: int = 1280, height: int = 900, media: dict[str, str] | None = None) -> "Page":
        """A new page of this size in CSS pixels; `media`: features such as `prefers-color-scheme`."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log", "Audits"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [{"name": name, "value": value} for name, value in (media or {}).items()]
        page.call("Emulation.setEmulatedMedia", features=features)
        page.call("Page.navigate", url=url)
        return page


class Page:
    """One page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser = browser
        self.events: list[Json] = []
        self._session = session

    def call(self, method: str, **params: Any) -> Json:
        return self.browser.call(method, self._session, **params)

    def js(self, expression: str) -> Any:
        """The value of an expression, a promise's included."""
        said = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def text(self, selector: str) -> str:
        """What is shown there; empty: nothing is."""
        return str(self.js(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def wait(self, met: Callable[[], bool], what: str) -> None:
        eventually(met, f"{what}; the page says {self.text('body')[:2000]!r}, its console {self.troubles()}")

    def key(self, name: str, code: int, text: str = "") -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=code, **more)

    def urls(self) -> list[str]:
        """All that it asked the network for."""
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    def troubles(self) -> list[str]:
        """Exceptions, errors of the console, and what the browser's own audits found, such as violations of its CSP."""
        said = []
        for event in self.events:
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                said.append(json.dumps(params["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                said.append(f"{params['entry']['source']}: {params['entry']['text']}")
            elif event["method"] == "Audits.issueAdded":
                said.append(json.dumps(params["issue"]))
        return said

    def shoot(self, path: Path, *, whole: bool = True) -> None:
        """A picture of it as PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser with a fresh profile in `folder`; it ends with the block."""
    program = provide()
    read_by_it, to = os.pipe()
    came, written_by_it = os.pipe()
    script = f'exec "$0" "$@" 3<&{read_by_it} 4>&{written_by_it}'  # it reads commands from 3 and answers on 4
    argv = ["bash", "-c", script, program, *_SWITCHES, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            argv, pass_fds=(read_by_it, written_by_it), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    os.close(read_by_it)
    os.close(written_by_it)
    browser = Browser(process, to, came)
    try:
        yield browser
    finally:
        with contextlib.suppress(OSError, queue.Empty):
            browser.call("Browser.close")
        os.close(to)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
