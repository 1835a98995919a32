"""Drains, readmissions and pins by the admin listener and by the verbs, in front of engines that tests hold up."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from narwhal.cli.verbs import run_app
from narwhal.documents import problems
from tests.router.harness import Asked, FakeEngine, Router, eventually, routing, tokens

BODY = {"prompt": "x", "max_tokens": 3}


@pytest.fixture
def engines() -> Any:
    made = [FakeEngine() for _ in range(4)]
    yield made
    for engine in made:
        engine.close()


def order(router: Router, name: str, body: object, key: str = "") -> tuple[int, Any, dict[str, str]]:
    headers = {"idempotency-key": key} if key else {}
    status, headers, text = router.send("POST", f"/narwhal/{name}", body, headers, admin=True)
    answer = json.loads(text)
    assert problems(answer, "order-answer") == []
    assert answer["order"] == name
    assert answer["done"] is (status == 200)
    assert answer["apiVersion"] == "narwhal/v1"
    return status, answer, headers


def states(router: Router) -> dict[str, str]:
    return {engine["id"]: engine["state"] for engine in router.state()["engines"]}


class Held:
    """An engine's answer that waits for the test."""

    def __init__(self, engine: FakeEngine, leg: str) -> None:
        self.came, self.go = threading.Event(), threading.Event()

        def wait(asked: Asked, sock: Any) -> None:
            self.came.set()
            self.go.wait(60)
            tokens(asked, sock)

        setattr(engine, leg, wait)


def test_an_engine_is_drained_once_its_stream_is_done_and_its_kv_is_read(
    tmp_path: Path, engines: list[FakeEngine]
) -> None:
    with routing(tmp_path, engines) as router:
        held = [Held(engine, "leg_2") for engine in engines[2:]]
        answers: list[int] = []
        asking = threading.Thread(target=lambda: answers.append(router.send("POST", "/v1/completions", BODY)[0]))
        asking.start()
        eventually(lambda: any(h.came.is_set() for h in held), "leg 2")
        decode = "local/2" if held[0].came.is_set() else "local/3"
        producer = next(f"local/{n}" for n in (0, 1) if engines[n].generations)
        for name in (producer, decode):
            assert order(router, "drain", {"engines": [name]})[0] == 200
        drains = {e["id"]: e["drain"] for e in router.state()["engines"] if e["drain"]}
        assert (drains[producer]["residents"], drains[producer]["unread"]) == (0, 1)
        assert (drains[decode]["residents"], drains[decode]["unread"]) == (1, 0)
        assert problems(router.state(), "router-state") == []
        assert states(router)[producer] == states(router)[decode] == "draining"
        page = router.send("GET", "/metrics", admin=True)[2].decode()
        assert f'narwhal_engine_draining{{engine="{decode}"}} 1.0' in page
        assert f'narwhal_engine_drained{{engine="{decode}"}} 0.0' in page
        for each in held:
            each.go.set()
        asking.join(60)
        assert answers == [200]
        eventually(lambda: states(router)[producer] == states(router)[decode] == "drained", "the drains' end")
        assert router.send("POST", "/v1/completions", BODY)[0] == 200
        rows = lambda: [r["change"] for r in router.rows("engine") if r["engine"] == decode]  # noqa: E731
        eventually(lambda: rows()[-2:] == ["draining", "drained"], "the rows")


def test_at_its_deadline_a_request_is_served_elsewhere(tmp_path: Path, engines: list[FakeEngine]) -> None:
    with routing(tmp_path, engines) as router:
        held = [Held(engine, "leg_2") for engine in engines[2:]]
        answers: list[int] = []
        asking = threading.Thread(target=lambda: answers.append(router.send("POST", "/v1/completions", BODY)[0]))
        asking.start()
        eventually(lambda: any(h.came.is_set() for h in held), "leg 2")
        number = 2 if held[0].came.is_set() else 3
        engines[5 - number].leg_2 = tokens
        assert order(router, "drain", {"engines": [f"local/{number}"], "deadline_s": 0})[0] == 200
        asking.join(60)
        assert answers == [200]
        eventually(lambda: states(router)[f"local/{number}"] == "drained", "its drain")
        eventually(lambda: bool(router.rows("request")), "its row")
        row = router.rows("request")[0]
        assert (row["outcome"], row["decode_engine"]) == ("served", f"local/{5 - number}")
        for each in held:
            each.go.set()


def test_an_idempotency_key_does_an_order_once(tmp_path: Path, engines: list[FakeEngine]) -> None:
    with routing(tmp_path, engines) as router:
        swap = {"a": "local/0", "b": "local/3"}
        status, first, headers = order(router, "swap", swap, "key-1")
        assert (status, first["decision"]["outcome"]) == (200, "moved")
        assert "idempotency-replayed" not in headers
        for _ in range(3):
            status, again, headers = order(router, "swap", swap, "key-1")
            assert (status, again, headers["idempotency-replayed"]) == (200, first, "true")
        assert router.state()["epoch"] == 2
        status, answer, _ = order(router, "swap", {"a": "local/1", "b": "local/3"}, "key-1")
        assert (status, answer["error"]["code"]) == (422, "idempotency_key_reused")
        status, answer, _ = order(router, "move", {"engine": "local/1", "role": "decode"}, "key-1")
        assert (status, answer["error"]["code"]) == (422, "idempotency_key_reused")
        assert router.state()["epoch"] == 2
        assert order(router, "pin", {"engine": "local/9", "role": "none"}, "key-2")[0] == 404
        assert order(router, "pin", {"engine": "local/1", "role": "none"}, "key-2")[0] == 200  # nothing was decided
        status, held, _ = order(router, "drain", {"engines": ["local"]}, "key-3")
        assert status == 409
        assert order(router, "drain", {"engines": ["local"]}, "key-3")[1] == held
        assert order(router, "hold", {}, "not a key")[1]["error"]["code"] == "idempotency_key"
        status, reload, _ = order(router, "reload", {}, "key-4")
        assert (status, order(router, "reload", {}, "key-4")[1]) == (200, reload)
        page = router.send("GET", "/metrics", admin=True)[2].decode()
        assert 'narwhal_reloads_total{outcome="applied"} 1.0' in page
        assert router.send("POST", "/v1/completions", BODY)[0] == 200


def test_a_host_is_drained_whole_or_not_at_all(tmp_path: Path, engines: list[FakeEngine]) -> None:
    controller = "enabled: false, min_prefill: 0, min_decode: 0"
    with routing(tmp_path, engines, controller=controller) as router:
        status, answer, _ = order(router, "drain", {"engines": ["local"]})
        assert (status, answer["done"]) == (409, False)
        [live] = [guard for guard in answer["decision"]["guards"] if not guard["passed"]]
        assert (live["name"], live["value"], live["limit"]) == ("live", 0.0, 1.0)
        assert set(states(router).values()) == {"live"}
        status, answer, _ = order(router, "drain", {"engines": ["local/0", "local/1"]})
        assert (status, [engine["id"] for engine in answer["engines"]]) == (200, ["local/0", "local/1"])
        for admin in (False, True):
            status, _, text = router.send("GET", "/ready", admin=admin)
            assert (status, json.loads(text)["state"]) == (200, "degraded")
        assert router.send("POST", "/v1/completions", BODY)[0] == 200  # aggregated
        assert order(router, "readmit", {"engines": ["local"]})[0] == 200
        ready = {"ready": True, "state": "ready", "reason": ""}
        eventually(lambda: json.loads(router.send("GET", "/ready")[2]) == ready, "both roles")


def test_a_host_that_has_all_of_a_role_is_drained_by_moving_others_first(
    tmp_path: Path, engines: list[FakeEngine]
) -> None:
    with routing(tmp_path, engines) as router:
        both = {"engines": ["local/0", "local/1"]}
        assert order(router, "drain", both)[0] == 409
        status, answer, _ = order(router, "drain", {**both, "move": True})
        assert (status, [move["target"] for move in answer["decision"]["moves"]]) == (200, ["prefill"])
        for _ in range(4):
            assert router.send("POST", "/v1/completions", BODY)[0] == 200
        assert engines[0].generations == engines[1].generations == []
        assert {asked.leg for engine in engines[2:] for asked in engine.generations} == {1, 2}


def verb(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any, str]:
    code = run_app([*arguments, "--format", "json"])
    said = capsys.readouterr()
    return code, json.loads(said.out), said.err


def test_the_verbs(tmp_path: Path, engines: list[FakeEngine], capsys: pytest.CaptureFixture[str]) -> None:
    with routing(tmp_path, engines) as router:
        at = ("--router", f"unix:{router.admin_socket}")
        code, answer, said = verb("drain", "local/0", "--wait", *at, capsys=capsys)
        assert (code, answer["data"]["engines"][0]["state"]) == (0, "drained")
        assert "local/0 is drained: it can be stopped" in said
        code, answer, _ = verb("drain", "local/1", "--wait", *at, capsys=capsys)
        assert (code, answer["errors"][0]["code"]) == (4, "held")
        assert answer["errors"][0]["message"].endswith("prefill would have 0 engines, its floor is 1")
        assert "--move gives a role" in answer["errors"][0]["hint"]
        code, answer, _ = verb("drain", "local", *at, capsys=capsys)
        assert (code, "--move" in answer["errors"][0]["hint"]) == (4, False), "nobody stays who could take it over"
        run_app(["why", *at])
        assert "refused since: 2 orders, the latest:\nan order of the operator's" in capsys.readouterr().out
        run_app(["drain", "local/0", *at])
        assert capsys.readouterr().out == "drained, can be stopped: local/0\n"
        run_app(["drain", "local/1", "--cancel", *at])
        assert capsys.readouterr().out == "was not being drained: local/1\n"
        code, answer, _ = verb("status", *at, capsys=capsys)
        assert code == 3
        run_app(["status", *at])
        assert "local/0 is drained: it can be stopped" in capsys.readouterr().out
        run_app(["why", *at])
        assert "local/0 is drained" in capsys.readouterr().out
        code, answer, _ = verb("readmit", "local", "--wait", *at, capsys=capsys)
        assert (code, answer["data"]["done"]) == (0, True)
        assert set(states(router).values()) == {"live"}
        assert verb("drain", "local/0", *at, capsys=capsys)[0] == 0
        assert verb("drain", "local/0", "--cancel", *at, capsys=capsys)[0] == 0
        eventually(lambda: set(states(router).values()) == {"live"}, "its return")
        assert verb("drain", "local/0", "--cancel", "--wait", *at, capsys=capsys)[0] == 2
        assert verb("pin", "local/0", "prefill", *at, capsys=capsys)[0] == 0
        code, answer, _ = verb("move", "local/0", "decode", *at, capsys=capsys)
        assert "local/0 is pinned" in answer["errors"][0]["message"]
        assert verb("pin", "local/0", "none", *at, capsys=capsys)[0] == 0
        assert verb("pin", "local/0", "both", *at, capsys=capsys)[0] == 2
        code, answer, _ = verb("drain", "elsewhere", *at, capsys=capsys)
        assert (code, answer["errors"][0]["code"]) == (2, "engine")
