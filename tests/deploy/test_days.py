"""roll, rollback, stop and purge over the same runner; what they change makes gates stale."""

import json
from pathlib import Path

import pytest

from narwhal.cli import days as _days
from narwhal.cli import deploy as _deploy
from narwhal.cli.app import run_app
from narwhal.deploy.gates import DAYS
from tests.deploy.conftest import Fake

VERBS = (_days, _deploy)
pytestmark = pytest.mark.e2e


@pytest.fixture
def served(fleet: Path, fake: Fake) -> Path:
    """A fleet that passed all gates."""
    assert run_app(["deploy", str(fleet), "--yes"]) == 0
    for name in DAYS:
        playbook = fleet.parent / "run/lab" / f"{name}.yml"
        if not playbook.exists():
            playbook.write_text("---\n")
    fake.forget()
    return fleet


def stale(fleet: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    run_app(["gates", str(fleet), "--format", "json"])
    gates = json.loads(capsys.readouterr().out)["data"]["gates"]
    return "".join(gate["gate"] for gate in gates if gate["state"] == "stale")


@pytest.mark.parametrize(
    ("name", "expected"), [("stop", "CEG"), ("rollback", "BCEG"), ("roll", "E"), ("purge", "BCEFG")]
)
def test_what_each_makes_stale(
    name: str, expected: str, served: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.tell({f"{name}.yml": {"changed": ["a"]}})
    options = ["--confirm", "lab"] if name == "purge" else ["--yes"]
    assert run_app([name, str(served), *options]) == 0
    assert f"{name}: done; a changed" in capsys.readouterr().out
    (asked,) = fake.asked
    assert asked["playbook"] == f"{name}.yml"
    assert asked["variables"].get("narwhal_purge") == ("lab" if name == "purge" else None)
    assert stale(served, capsys) == expected


def test_another_launch_is_better_rolled_and_a_roll_answers_what_it_did(
    served: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    served.write_text(served.read_text().replace("max_num_seqs: 64", "max_num_seqs: 32"))
    assert run_app(["deploy", str(served)]) == 2  # nobody is there to say yes
    err = capsys.readouterr().err
    assert "gates B, C, D, E, F, G are to run" in err
    assert f"and requests on them fail;\n  `narwhal roll {served}` does it a host at a time" in err
    assert stale(served, capsys) == "BCDEFG"
    assert run_app(["roll", str(served), "--yes", "--limit", "a"]) == 0
    assert stale(served, capsys) == "BCDEFG"
    fake.tell({"roll.yml": {"changed": ["a", "b"]}})
    assert run_app(["roll", str(served), "--yes"]) == 0
    assert stale(served, capsys) == "DEFG"
    assert run_app(["deploy", str(served)]) == 2
    assert "narwhal roll" not in capsys.readouterr().err


def test_a_roll_that_stops_says_where(served: Path, fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    fake.tell({"roll.yml": {"stop": {"host": "b", "message": "b/0 did not come back"}}})
    assert run_app(["roll", str(served), "--yes"]) == 1
    err = capsys.readouterr().err
    assert "error[roll]: roll failed: b: Verify: b/0 did not come back" in err
    assert f"narwhal roll {served}` goes on" in err


def test_a_purge_needs_the_fleets_name(served: Path, fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["purge", str(served), "--confirm", "another"]) == 2
    assert "--confirm lab" in capsys.readouterr().err
    assert fake.asked == []
