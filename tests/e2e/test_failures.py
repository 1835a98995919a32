"""Links that fail under traffic, and what operators are shown of it; engines that fail are drills (tests/chaos)."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from narwhal.engine.launch import simulated_argv
from narwhal.fleet.expanded import EngineSpec
from tests.e2e.routers import Fleet, answers, fleet_of
from tests.router.harness import eventually

pytestmark = pytest.mark.e2e
RECOVERY = "probe_interval_s: 0.5, probe_timeout_s: 1.5, readmit_backoff_s: 0.5, link_retry_s: 2"
BODY = {"model": "m", "prompt": "What did the narwhal see under the ice? " * 4, "max_tokens": 8, "temperature": 0}


class Traffic:
    """Clients that ask one request after the other, half of them streamed, until told to stop."""

    def __init__(self, fleet: Fleet, clients: int = 4) -> None:
        self.served = 0
        self.failed: list[Any] = []
        self._fleet = fleet
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(n % 2 == 0,)) for n in range(clients)]

    def _ask(self, stream: bool) -> None:
        while not self._stop.is_set():
            status, _, data = self._fleet.router.send("POST", "/v1/completions", {**BODY, "stream": stream})
            with self._lock:
                if status == 200 and b'"error"' not in data:
                    self.served += 1
                else:
                    self.failed.append((status, data[-300:]))

    def more(self, count: int) -> None:
        """Wait until so many more requests have been served."""
        wanted = self.served + count
        eventually(lambda: self.served >= wanted or len(self.failed) > 3, f"{count} more requests")

    def __enter__(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def engine(fleet: Fleet, name: str) -> Any:
    return next(e for e in fleet.router.state()["engines"] if e["id"] == name)


def changes(fleet: Fleet, change: str) -> list[str]:
    """Engines, or pairs as `a > b`, with such a row in the journal."""
    rows = fleet.router.rows("engine") + fleet.router.rows("pair")
    return [r.get("engine") or f"{r['producer']} > {r['consumer']}" for r in rows if r["change"] == change]


def links(fleet: Fleet) -> dict[tuple[str, str], Any]:
    document = json.loads(fleet.router.send("GET", "/narwhal/links", admin=True)[2])
    return {(row["producer"], row["consumer"]): row for row in document["links"]}


def narwhal(fleet: Fleet, verb: str, code: int) -> Any:
    """The data of a verb's answer."""
    argv = [sys.executable, "-m", "narwhal", verb, "--router", f"http://127.0.0.1:{fleet.router.admin_port}"]
    done = subprocess.run([*argv, "--format", "json"], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)["data"]


def fault(fleet: Fleet, number: int, **what: Any) -> None:
    url = f"{fleet.expanded.engines[number].url}/simulate/faults"
    with urlopen(Request(url, json.dumps(what).encode(), {"content-type": "application/json"}), timeout=30):
        pass


def engine_id(fleet: Fleet, number: int) -> str:
    """The id that its peers know the process by."""
    body = {**BODY, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    url = f"{fleet.expanded.engines[number].url}/v1/completions"
    with urlopen(Request(url, json.dumps(body).encode(), {"content-type": "application/json"}), timeout=30) as answer:
        return str(json.loads(answer.read())["kv_transfer_params"]["remote_engine_id"])


def start(fleet: Fleet, spec: EngineSpec, log: Path, *more: str) -> None:
    """Start an engine's process anew."""
    argv = [*simulated_argv(fleet.expanded, spec), *more]
    with log.open("wb") as file:
        fleet.engines[spec.index] = subprocess.Popen(argv, stdout=file, stderr=file)
    eventually(lambda: answers(spec.url), f"{spec.id}'s health")


def generations_at(fleet: Fleet, number: int) -> float:
    """Tokens that an engine has generated, as it counts them."""
    with urlopen(f"{fleet.expanded.engines[number].url}/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith("vllm:generation_tokens_total")).split()[-1])


def test_a_dead_link_is_avoided_and_both_its_engines_serve_others(tmp_path: Path) -> None:
    with fleet_of(tmp_path, 4, speed=4.0, recovery=RECOVERY) as fleet:
        names = [spec.id for spec in fleet.expanded.engines]
        pair = (names[0], names[2])
        with Traffic(fleet, clients=10) as traffic:
            traffic.more(10)
            fault(fleet, 0, kind="drop_peer", engine=engine_id(fleet, 2))
            eventually(lambda: links(fleet)[pair]["state"] == "out", "the pair's end")
            shown = narwhal(fleet, "links", 3)["links"]
            assert [(row["producer"], row["consumer"]) for row in shown if row["state"] == "out"] == [pair]
            told = [row for row in narwhal(fleet, "why", 0)["changes"] if row["change"] == "out"]
            assert [(row["producer"], row["consumer"]) for row in told] == [pair]
            before = {key: row["handoffs"] for key, row in links(fleet).items()}
            traffic.more(40)
            for other in ((names[0], names[3]), (names[1], names[2])):
                eventually(lambda o=other: links(fleet)[o]["handoffs"] > before.get(o, 0), "handoffs of both")  # type: ignore[misc]
            assert links(fleet)[pair]["handoffs"] - before[pair] <= 10  # those that were under way
            with urlopen(Request(f"{fleet.expanded.engines[0].url}/simulate/faults", method="DELETE"), timeout=30):
                pass
            eventually(lambda: links(fleet)[pair]["state"] != "out", "its return")
        assert traffic.failed == []
        assert changes(fleet, "ejected") == []
        assert set(changes(fleet, "out")) == {f"{pair[0]} > {pair[1]}"}


def corrupt(fleet: Fleet, until: Callable[[], bool]) -> None:
    """Arm the canary, spoil KV, wait."""
    page = lambda: fleet.router.send("GET", "/metrics", admin=True)[2]  # noqa: E731
    eventually(lambda: b"narwhal_canary_armed 1.0" in page(), "an armed canary")
    fault(fleet, 0, kind="corrupt_kv", side="producer")
    eventually(until, "what canaries condemn")


def test_canaries_find_a_producer_of_wrong_kv(tmp_path: Path) -> None:
    with fleet_of(tmp_path, 4, speed=4.0, recovery=RECOVERY, canary=0.2) as fleet:
        name = fleet.expanded.engines[0].id
        corrupt(fleet, lambda: engine(fleet, name)["state"] == "ejected")
        eventually(lambda: changes(fleet, "ejected") == [name], "its row")
        assert all(pair.startswith(f"{name} > ") for pair in changes(fleet, "out"))
        assert "wrong KV" in engine(fleet, name)["reason"]


def test_canaries_take_out_one_pair_with_wrong_kv(tmp_path: Path) -> None:
    with fleet_of(tmp_path, 2, speed=4.0, recovery=RECOVERY, canary=0.2) as fleet:
        names = [spec.id for spec in fleet.expanded.engines]
        corrupt(fleet, lambda: links(fleet).get((names[0], names[1]), {}).get("state") == "out")
        eventually(lambda: f"{names[0]} > {names[1]}" in changes(fleet, "out"), "its row")
        status, _, data = fleet.router.send("POST", "/v1/completions", BODY)
        assert status == 200, data
        eventually(lambda: bool(fleet.router.rows("request")), "its row")
        row = fleet.router.rows("request")[-1]
        assert (row["outcome"], row["prefill_engine"]) == ("served", "")  # whole: nobody may read from the producer
        assert changes(fleet, "ejected") == []
