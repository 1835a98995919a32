"""`narwhal deploy` and `narwhal gates`, with a stand-in for Ansible: order, resumption, evidence, failures."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from narwhal.cli import deploy as _deploy
from narwhal.cli.app import run_app
from narwhal.deploy import deploying
from narwhal.documents import problems
from tests.deploy.conftest import Fake

VERBS = (_deploy,)
pytestmark = pytest.mark.e2e


def run(fleet: Path, *options: str) -> int:
    return run_app(["deploy", str(fleet), "--yes", *options])


def evidence(fleet: Path, name: str) -> list[dict[str, Any]]:
    """Evidence of a gate, oldest first; each must be valid."""
    paths = sorted((fleet.parent / "run/lab/evidence" / name).glob("*/GateEvidence.json"))
    found = [json.loads(path.read_text()) for path in paths]
    assert all(problems(one, "gate-evidence") == [] for one in found)
    return found


def states(fleet: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    run_app(["gates", str(fleet), "--format", "json"])
    return " ".join(gate["state"] for gate in json.loads(capsys.readouterr().out)["data"]["gates"])


def test_all_gates_in_order_then_nothing_to_do(fleet: Path, fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(fleet) == 0
    assert fake.letters == "ABCDEFG"
    said = capsys.readouterr()
    assert "passed: A, B, C, D, E, F, G" in said.out
    assert "  A discover   on all hosts: it never ran" in said.err
    assert "B install  Verify: 3 ok" in said.err
    assert run_app(["gates", str(fleet)]) == 0
    fake.forget()
    assert run(fleet) == 0
    assert fake.asked == []
    assert "nothing to do" in capsys.readouterr().err


def test_gate_a_freezes_what_it_found_and_the_next_gate_is_rendered_with_it(fleet: Path, fake: Fake) -> None:
    assert run(fleet, "--through", "B") == 0
    directory = fleet.parent / "run/lab"
    frozen = json.loads((directory / "frozen.json").read_text())
    assert problems(frozen, "frozen-inputs") == []
    assert frozen["addresses"] == {"a": "10.1.0.1", "b": "10.1.0.2"}
    assert json.loads((directory / "files/launch/b-0.json").read_text())["host"] == "10.1.0.2"
    (told,) = evidence(fleet, "b-install")
    assert set(told["facts"]) == {"a", "b", "edge"}
    assert {"host:a", "revision", "launch:b/1"} <= set(told["inputs"])
    assert fake.asked[1]["variables"]["narwhal_owner"] == told["operator"]


def test_it_stops_at_the_first_failure_and_goes_on_from_there(
    fleet: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.tell({"gate-c-engines.yml": {"stop": {"host": "b", "message": "b/0 does not answer\nwithin 60 s"}}})
    assert run(fleet) == 1
    err = capsys.readouterr().err
    assert "error[gate_c]: gate c-engines failed: b: Verify: b/0 does not answer within 60 s" in err
    assert f"narwhal deploy {fleet}` goes on with C engines" in err
    assert [one["playbook"] for one in fake.asked][-1] == "unlock.yml"
    assert fake.letters == "ABC"
    assert evidence(fleet, "c-engines")[0]["failure"]["host"] == "b"
    assert states(fleet, capsys) == "passed passed failed never never never never"
    fake.forget()
    fake.tell({})
    assert run(fleet) == 0
    assert fake.letters == "CDEFG"


def test_a_host_that_is_not_reached_is_told_with_the_command_to_try(
    fleet: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.tell({"gate-b-install.yml": {"stop": {"host": "a", "message": "timed out", "status": "unreachable"}}})
    assert run(fleet) == 1
    err = capsys.readouterr().err
    assert "gate b-install unreachable: a: Verify: timed out" in err
    assert "ops@10.0.0.1` must work" in err


def test_a_playbook_that_cannot_run_is_told_in_ansibles_words(
    fleet: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.tell({"gate-a-discover.yml": {"broken": True}})
    assert run(fleet) == 1
    assert "gate a-discover broken: ERROR! the role 'x' was not found" in capsys.readouterr().err


def test_a_changed_argument_runs_exactly_what_depends_on_it_and_on_the_hosts_it_is_of(fleet: Path, fake: Fake) -> None:
    assert run(fleet) == 0
    fake.forget()
    text = fleet.read_text().replace("max_num_seqs: 64", "max_num_seqs: 64\n  overrides: {a/1: {args: {speed: 2}}}")
    fleet.write_text(text)
    assert run(fleet) == 0
    assert fake.letters == "BCDEFG"
    assert [one["hosts"] for one in fake.asked][:3] == [["a"], ["a"], ["a", "b", "edge"]]
    newest = evidence(fleet, "b-install")[-1]
    assert newest["limited_to"] == ["a"]
    assert set(newest["carried"]) == {"b", "edge"}
    fake.forget()
    fleet.write_text(text.replace("primary: edge", "primary: edge, port: 9000"))
    assert run(fleet) == 0
    assert fake.letters == "G"


def test_a_limited_run_leaves_the_other_hosts_to_come(
    fleet: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(fleet, "--through", "C", "--limit", "a") == 0
    assert {tuple(one["hosts"]) for one in fake.asked} == {("a",)}
    assert states(fleet, capsys) == "stale stale stale never never never never"
    fake.forget()
    assert run(fleet, "--through", "C") == 0
    assert [one["hosts"] for one in fake.asked] == [["a", "b", "edge"], ["b", "edge"], ["b", "edge"]]
    assert states(fleet, capsys) == "passed passed passed never never never never"


def test_one_gate_alone_needs_those_before_it(fleet: Path, fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(fleet, "--only", "B") == 2
    assert "gate A comes before B, and it is never" in capsys.readouterr().err
    assert run(fleet, "--through", "B") == 0
    fake.forget()
    assert run(fleet, "--only", "b") == 0
    assert fake.letters == "B"
    assert run(fleet, "--only", "H") == 2
    assert run(fleet, "--limit", "nobody") == 2


@pytest.mark.parametrize("leads", ["primary", "standby"])
def test_gate_g_looks_at_the_router_that_leads(
    fleet: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch, leads: str
) -> None:
    asked = []

    def check(*_: object, standby: bool) -> tuple[dict[str, Any], None]:
        asked.append(standby)
        return {}, None

    monkeypatch.setattr(deploying, "check_serving", check)
    fake.tell({"gate-g-serve.yml": {"facts": {"edge": {"serving": [leads]}, "a": {}}}})
    assert run(fleet) == 0
    assert asked == [leads == "standby"]


def test_check_shows_differences_and_leaves_nothing(
    fleet: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    diff = [{"before": "a\nb\n", "after": "a\nc\n", "path": "/etc/x"}]
    fake.tell({"gate-b-install.yml": {"changed": ["b"], "diff": diff}})
    assert run(fleet, "--check", "--through", "B") == 0
    assert all(one["check"] for one in fake.asked)
    err = capsys.readouterr().err
    assert "    b: -b\n    b: +c\n" in err
    assert not (fleet.parent / "run/lab/evidence").exists()


def test_without_anybody_to_ask_it_does_not_begin(fleet: Path, fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "narwhal", "deploy", str(fleet)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert fake.asked == []
    del capsys


def test_two_operators_of_one_directory_do_not_collide(
    fleet: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    from narwhal.deploy import locked

    with locked(fleet.parent / "run/lab", "deploy"):
        assert run(fleet) == 2
    assert f"deploy by {_owner()}, process {os.getpid()}" in capsys.readouterr().err
    assert fake.asked == []
    assert run(fleet, "--through", "A") == 0


def _owner() -> str:
    from narwhal.deploy.lock import operator

    return operator()


def test_ctrl_c_reaches_ansible_and_the_evidence_says_so(fleet: Path, fake: Fake, tmp_path: Path) -> None:
    fake.tell({"gate-b-install.yml": {"hang": True}})
    mark = tmp_path / "asked.hangs"

    def press() -> None:
        deadline = time.monotonic() + 60
        while not mark.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    assert run(fleet) == 130
    presser.join()
    (found,) = evidence(fleet, "b-install")
    assert (found["verdict"], found["exit_code"]) == ("interrupted", 99)
    assert fake.letters == "AB"
    fake.tell({})
    assert run(fleet, "--through", "B") == 0


def test_a_hand_edited_file_and_a_bundle_nobody_approved_are_refused(
    fleet: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    (fleet.parent / "run/lab/bundle.tar").write_bytes(b"another")
    assert run(fleet) == 2
    assert "approved is sha256:" in capsys.readouterr().err
    assert fake.letters == "A"
    (fleet.parent / "run/lab/ansible.cfg").write_text("mine")
    assert run(fleet) == 2
    assert "ansible.cfg: changed since" in capsys.readouterr().err


def test_a_fleet_file_that_changes_meanwhile_ends_it(
    fleet: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from narwhal.deploy import deploying

    real = deploying.freeze

    def freeze(*arguments: Any) -> None:
        real(*arguments)
        fleet.write_text(fleet.read_text().replace("ttft_s: 2.0", "ttft_s: 3.0"))

    monkeypatch.setattr(deploying, "freeze", freeze)
    assert run(fleet) == 2
    assert "changed while it was deployed" in capsys.readouterr().err
    assert fake.letters == "A"


def test_files_of_a_run_are_private_and_a_password_is_in_none(
    fleet: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NARWHAL_BECOME_PASSWORD", "tell-nobody-of-this")
    assert run(fleet, "--through", "A") == 0
    run_dir = fleet.parent / "run/lab"
    files = [path for path in run_dir.rglob("*") if path.is_file()]
    assert not any(b"tell-nobody" in path.read_bytes() for path in files)
    assert {path.stat().st_mode & 0o077 for path in (run_dir / "evidence").rglob("*")} == {0}
    del fake
