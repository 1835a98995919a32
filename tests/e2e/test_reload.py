"""A fleet file that changes under traffic: what can be applied is, the rest is said, and no request fails."""

import http.client
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from narwhal.dev.ports import free_run
from narwhal.documents import problems
from narwhal.fleet import open_fleet
from tests.e2e.commands import narwhal
from tests.e2e.routers import Fleet, fleet_of
from tests.router.harness import PATIENCE_S, Router, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
WHOLE = 5
"""Engines that run; the fleet file begins with one less."""


class Traffic:
    """Clients that stream one completion after the other, and remember every one that is not whole."""

    def __init__(self, port: int, clients: int = 3) -> None:
        self.port = port
        self.whole = 0
        self.broken: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                body = stream(self.port, 8)
            except OSError as error:
                self.broken.append(repr(error))
                return
            if body.endswith(b"data: [DONE]\n\n") and b'"error"' not in body:
                self.whole += 1
            else:
                self.broken.append(body.decode())

    def more(self, number: int = 3) -> None:
        """Wait until so many further requests were served."""
        before = self.whole
        eventually(lambda: self.whole >= before + number or bool(self.broken), "traffic")
        assert self.broken == []

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)


def stream(port: int, tokens: int) -> bytes:
    """One streamed completion, whole."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as connection:
        body = {"model": "m", "prompt": "under the ice", "max_tokens": tokens, "stream": True, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        return response.read() if response.status == 200 else f"{response.status} {response.read()!r}".encode()


class Reloaded:
    """A running fleet and its file."""

    def __init__(self, fleet: Fleet, path: Path, base: str, traffic: Traffic) -> None:
        self.router: Router = fleet.router
        self.path, self.base, self.traffic = path, base, traffic

    def write(self, *edits: tuple[str, str]) -> None:
        text = self.base
        for old, new in edits:
            assert old in text, old
            text = text.replace(old, new)
        self.path.write_text(text)

    def post(self, *, check: bool = False) -> tuple[int, Any]:
        status, _, body = self.router.send("POST", "/narwhal/reload", {"check": check}, admin=True)
        document = json.loads(body)["reload"]
        assert problems(document, "reload") == []
        return status, document

    def hang_up(self) -> None:
        self.router.process.send_signal(signal.SIGHUP)

    def rows(self, number: int) -> list[Any]:
        """So many rows of the journal about reloads of the file as it is now."""
        digest = open_fleet(self.path).fleet.digest()

        def about() -> list[Any]:
            return [row for row in self.router.rows("reload") if row["digest"] == digest]

        eventually(lambda: len(about()) == number, "the journal's rows")
        return about()

    def said(self, text: str) -> bool:
        return text in self.router.log.read_text()

    def reload(self, *more: str, file: Path | None = None) -> dict[str, Any]:
        """What the verb says."""
        return narwhal("reload", str(file or self.path), *more, home=self.path.parent)

    def engines(self) -> dict[str, Any]:
        return {engine["id"]: engine for engine in self.router.state()["engines"]}

    def back(self) -> None:
        """The file as it was at the start is in force, and every engine of it live."""
        self.write()
        assert self.post()[0] == 200
        eventually(lambda: {name: e["state"] for name, e in self.engines().items()} == dict.fromkeys(FIRST, "live"))


FIRST = [f"local/{n}" for n in range(WHOLE - 1)]
SMALLER = ((f"per_host: {WHOLE}", f"per_host: {WHOLE - 1}"), ("decode: 3", "decode: 2"))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reloaded]:
    folder = tmp_path_factory.mktemp("reload")
    with fleet_of(folder, WHOLE, speed=2.0) as fleet:
        path = folder / "fleet.yaml"
        base = path.read_text()
        for old, new in SMALLER:
            assert old in base
            base = base.replace(old, new)
        traffic = Traffic(fleet.router.port)
        yield Reloaded(fleet, path, base, traffic)
        traffic.stop()
        assert traffic.broken == []


@pytest.fixture
def fleet(running: Reloaded) -> Reloaded:
    running.back()
    return running


def test_the_slo_and_the_policy_change_under_traffic(fleet: Reloaded) -> None:
    fleet.write(("ttft_s: 10.0", "ttft_s: 12.0"), ("enabled: false", "enabled: false, policy: projection"))
    fleet.hang_up()
    row = fleet.rows(1)[0]
    assert (row["by"], row["applied"], row["restart"]) == ("SIGHUP", ["slo.ttft_s", "controller.policy"], [])
    assert row["before"] != row["digest"]
    assert fleet.router.state()["policy"] == "projection"
    assert fleet.said("reload (SIGHUP): applied slo.ttft_s 10 → 12, controller.policy")
    fleet.traffic.more()


def test_an_engine_that_is_added_gets_work(fleet: Reloaded) -> None:
    fleet.write(*((new, old) for old, new in SMALLER))
    status, document = fleet.post()
    assert status == 200
    assert [change["path"] for change in document["applied"]] == ["engine local/4"]
    eventually(lambda: fleet.engines()["local/4"]["state"] == "live", "the new engine's life")
    eventually(lambda: any(row["decode_engine"] == "local/4" for row in fleet.router.rows("request")), "its work")
    assert {"joined"} <= {row["change"] for row in fleet.router.rows("engine") if row["engine"] == "local/4"}
    fleet.traffic.more()


def test_an_engine_that_is_taken_out_finishes_its_streams(fleet: Reloaded) -> None:
    fleet.write(*((new, old) for old, new in SMALLER))
    fleet.post()
    eventually(lambda: fleet.engines()["local/4"]["state"] == "live", "the engine's life")
    long: list[bytes] = []
    threads = [threading.Thread(target=lambda: long.append(stream(fleet.router.port, 600))) for _ in range(6)]
    for thread in threads:
        thread.start()
    eventually(lambda: fleet.engines()["local/4"]["residents"] > 0, "streams on it")
    fleet.write()
    assert [change["path"] for change in fleet.post()[1]["applied"]] == ["engine local/4"]
    assert fleet.engines().get("local/4", {"state": "leaving"})["state"] == "leaving"
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [body.endswith(b"data: [DONE]\n\n") for body in long] == [True] * len(threads)
    eventually(lambda: "local/4" not in fleet.engines(), "its leave")
    page = fleet.router.send("GET", "/metrics", admin=True)[2]
    assert b'engine="local/0"' in page
    assert b'engine="local/4"' not in page

    def changes() -> list[Any]:
        return [row for row in fleet.router.rows("engine") if row["engine"] == "local/4"]

    eventually(lambda: [row["change"] for row in changes()][-2:] == ["leaving", "left"], "the journal's rows")
    retired_t = changes()[-2]["t"]

    def later() -> list[Any]:
        return [row for row in fleet.router.rows("request") if row["arrived_t"] > retired_t]

    eventually(lambda: len(later()) > 6, "requests after it")
    assert "local/4" not in {row[side] for row in later() for side in ("prefill_engine", "decode_engine")}
    fleet.traffic.more()


def test_a_broken_file_changes_nothing(fleet: Reloaded) -> None:
    before = {key: fleet.router.state()[key] for key in ("policy", "split", "epoch")}
    fleet.write(("ttft_s: 10.0", "ttft_s: 12.0"), ("decode: 2", "decode: -1"))
    line = 1 + fleet.path.read_text()[: fleet.path.read_text().index("decode: -1")].count("\n")
    fleet.hang_up()
    eventually(lambda: fleet.said("nothing was changed"), "the log")
    assert fleet.said(f"{fleet.path}:{line}:")
    assert fleet.said("NW007")
    status, document = fleet.post()
    assert status == 409
    assert document["errors"][0]["line"] == line
    assert document["applied"] == []
    result = fleet.reload()
    assert (result["exit_code"], result["errors"][0]["code"]) == (2, "NW007")
    assert {key: fleet.router.state()[key] for key in before} == before
    fleet.traffic.more()


def test_what_needs_a_restart_is_said(fleet: Reloaded) -> None:
    router = ("--router", f"unix:{fleet.router.admin_socket}")
    fleet.write(("port: " + str(fleet.router.port), "port: " + str(free_run(1))), ("ttft_s: 10.0", "ttft_s: 13.0"))
    checked = fleet.reload(*router, "--check")
    assert (checked["exit_code"], checked["data"]["check"]) == (3, True)
    assert fleet.post(check=True)[1]["applied"] != []
    done = fleet.reload(*router)
    assert done["exit_code"] == 3
    assert [change["path"] for change in done["data"]["applied"]] == ["slo.ttft_s"]
    assert fleet.post(check=True)[1]["applied"] == []
    assert [change["path"] for change in fleet.post()[1]["restart"]] == ["routers.port"]
    fleet.traffic.more()


def test_the_last_engine_of_a_role_is_not_taken_out(fleet: Reloaded) -> None:
    fleet.write(("per_host: 4", "per_host: 1"), ("prefill: 2, decode: 2", "prefill: 1, decode: 0"))
    result = fleet.reload()
    assert (result["exit_code"], result["errors"][0]["code"]) == (4, "floor")
    assert "no live decode engine" in result["errors"][0]["message"]
    assert sorted(fleet.engines()) == FIRST
    fleet.traffic.more()


def test_reloads_in_a_row_are_taken_in_turn(fleet: Reloaded) -> None:
    fleet.write(("ttft_s: 10.0", "ttft_s: 14.0"))
    fleet.hang_up()
    status, document = fleet.post()
    assert status == 200
    assert document["errors"] == []
    first, second = fleet.rows(2)
    assert {tuple(first["applied"]), tuple(second["applied"])} == {("slo.ttft_s",), ()}
    assert first["digest"] == second["before"] == second["digest"]


def test_another_copy_of_the_file_is_not_mistaken_for_the_router_s(fleet: Reloaded, tmp_path: Path) -> None:
    copy = tmp_path / "fleet.yaml"
    copy.write_text(fleet.path.read_text().replace("ttft_s: 10.0", "ttft_s: 14.5"))
    result = fleet.reload("--router", f"unix:{fleet.router.admin_socket}", file=copy)
    assert (result["exit_code"], result["errors"][0]["code"]) == (4, "other_file")
