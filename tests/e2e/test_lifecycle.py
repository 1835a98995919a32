"""A fleet whose engines are all restarted, one after the other, under load: no request may notice."""

import json
import signal
from pathlib import Path

import pytest

from tests.e2e.routers import Fleet, fleet_of
from tests.e2e.test_failures import RECOVERY, Traffic, changes, engine, generations_at, start
from tests.router.harness import eventually, post

pytestmark = pytest.mark.e2e


def order(fleet: Fleet, name: str, **body: object) -> None:
    status, _, text = fleet.router.send("POST", f"/narwhal/{name}", body, admin=True)
    assert status == 200, json.loads(text)["reason"]


def test_a_rolling_restart_fails_no_request_and_every_engine_comes_back_by_itself(tmp_path: Path) -> None:
    with fleet_of(tmp_path, 4, speed=4.0, recovery=RECOVERY + ", restarts: {most: 1}") as fleet:
        with Traffic(fleet) as traffic:
            traffic.more(20)
            for spec in fleet.expanded.engines:
                before = engine(fleet, spec.id)["generation"]
                order(fleet, "drain", engines=[spec.id])
                eventually(lambda: engine(fleet, spec.id)["state"] == "drained", f"{spec.id}'s drain")  # noqa: B023
                process = fleet.engines[spec.index]
                process.send_signal(signal.SIGTERM)
                process.wait(60)
                start(fleet, spec, tmp_path / f"again-{spec.index}.log")
                eventually(lambda: engine(fleet, spec.id)["state"] == "live", f"{spec.id}'s return")  # noqa: B023
                assert engine(fleet, spec.id)["generation"] != before
                assert engine(fleet, spec.id)["restarts"] == 0
                traffic.more(10)
        assert traffic.failed == []
        names = [spec.id for spec in fleet.expanded.engines]
        eventually(lambda: changes(fleet, "undrained") == names, "the rows")
        assert [name for name in changes(fleet, "readmitted") if name in names] == names
        assert "Traceback" not in fleet.router.log.read_text()


def test_a_roll_to_another_contract_fails_no_request_and_hands_nothing_over_between_the_two(tmp_path: Path) -> None:
    with fleet_of(tmp_path, 4, speed=4.0, recovery=RECOVERY) as fleet:
        cohort = lambda name: engine(fleet, name)["cohort"]  # noqa: E731
        names = [spec.id for spec in fleet.expanded.engines]
        eventually(lambda: cohort(names[0]) != "", "a contract that is known")
        old, new = cohort(names[0]), set[str]()
        with Traffic(fleet) as traffic:
            traffic.more(10)
            for spec in (fleet.expanded.engines[n] for n in (0, 3, 1, 2)):
                order(fleet, "drain", engines=[spec.id])
                eventually(lambda: engine(fleet, spec.id)["state"] == "drained", f"{spec.id}'s drain")  # noqa: B023
                fleet.engines[spec.index].terminate()
                fleet.engines[spec.index].wait(60)
                start(fleet, spec, tmp_path / f"again-{spec.index}.log", "--block-size", "32")
                eventually(lambda: engine(fleet, spec.id)["state"] == "live", f"{spec.id}'s return")  # noqa: B023
                new.add(spec.id)
                assert cohort(spec.id) != old
                lone = {name for name in names if engine(fleet, name)["lone"]}
                assert lone == {1: {names[0]}, 2: set(), 3: {names[2]}, 4: set()}[len(new)]
                before = generations_at(fleet, spec.index)
                traffic.more(10)
                eventually(lambda: generations_at(fleet, spec.index) > before, "work for it")  # noqa: B023
        assert traffic.failed == []
        assert len({cohort(name) for name in names}) == 1
        for row in fleet.router.rows("request"):
            assert row["outcome"] == "served"
        assert changes(fleet, "out") == []
        assert changes(fleet, "refused") == []


def test_streams_of_a_drained_engine_go_on_elsewhere_at_its_deadline(tmp_path: Path) -> None:
    body = {"model": "m", "prompt": "x", "max_tokens": 400, "temperature": 0, "stream": True}
    with fleet_of(tmp_path, 4, speed=1.0, recovery=RECOVERY) as fleet:
        sock = fleet.router.connect()
        sock.sendall(post(body))
        text = sock.recv(65536)
        while text.count(b"data:") < 20:
            text += sock.recv(65536)
        [at] = [e["id"] for e in fleet.router.state()["engines"] if e["residents"]]
        order(fleet, "drain", engines=[at], deadline_s=0.2)
        eventually(lambda: engine(fleet, at)["state"] == "drained", "its drain")
        busy = lambda: [e["id"] for e in fleet.router.state()["engines"] if e["residents"]]  # noqa: E731
        eventually(lambda: busy() not in ([], [at]), "its stream on another engine")
        while b"[DONE]" not in text and b'"error"' not in text:
            piece = sock.recv(1 << 20)
            if not piece:
                break
            text += piece
        assert b"[DONE]" in text
        eventually(lambda: bool(fleet.router.rows("request")), "its row")
        row = fleet.router.rows("request")[0]
        assert (row["outcome"], row["continued"], row["completion_tokens"]) == ("served", 1, 400)
        assert row["retries"] == 0
