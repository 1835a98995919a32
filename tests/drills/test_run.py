"""What a drill came to, and what it leaves: on fleets that are none."""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from narwhal.cli.verbs import run_app
from narwhal.drills import catalogue, run
from narwhal.drills.drill import Drill, DrillError, Figures, Goal, UnavailableError
from narwhal.drills.fleet import check_needs
from narwhal.drills.plan import Plan
from narwhal.drills.run import run_drills

GOAL = Goal("gap_s", most=1.0)


@pytest.fixture(autouse=True)
def _no_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def none(folder: Path, plan: Plan) -> Iterator[Any]:
        folder.mkdir(parents=True)
        (folder / "primary.log").write_text("what it said\n")
        yield None

    monkeypatch.setattr(run, "open_fleet_of", none)


def of(came: Figures | Exception, *goals: Goal) -> Drill:
    def play(fleet: Any) -> Figures:
        if isinstance(came, Exception):
            raise came
        return came

    return Drill("a-drill", "A fault", "Nothing comes of it.", "It is awaited.", play, Plan(), goals)


@pytest.mark.parametrize(
    ("came", "strict", "outcome", "reason"),
    [
        ({"gap_s": 0.5}, True, "passed", ""),
        ({"gap_s": 1.5}, False, "passed", ""),
        ({"gap_s": 1.5}, True, "failed", "gap_s is 1.5, 1 at most was the goal"),
        ({"gap_s": None}, True, "failed", "gap_s was not measured"),
        (DrillError("a token was lost"), False, "failed", "a token was lost"),
        (ConnectionRefusedError("nobody there"), False, "failed", "ConnectionRefusedError: nobody there"),
        (UnavailableError("etcd is not here"), True, "unavailable", "etcd is not here"),
    ],
)
def test_outcomes(came: Figures | Exception, strict: bool, outcome: str, reason: str, tmp_path: Path) -> None:
    said: list[str] = []
    [done] = run_drills([of(came, GOAL)], said.append, strict=strict, where=tmp_path / "kept")
    assert (done.outcome, done.reason) == (outcome, reason)
    assert outcome in said[-1]
    log = tmp_path / "kept/a-drill/primary.log"
    assert log.exists() == (outcome == "failed") == bool(done.kept)
    assert (tmp_path / "kept").exists() == (outcome == "failed")


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def play(fleet: Any) -> Figures:
        raise KeyboardInterrupt

    drill = Drill("a-drill", "A fault", "", "", play, Plan())
    with pytest.raises(KeyboardInterrupt):
        run_drills([drill], lambda line: None, where=tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_bug_in_a_drill_is_no_outcome(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run_drills([of(ZeroDivisionError())], lambda line: None, where=tmp_path)


@pytest.mark.parametrize(
    ("others", "code"),
    [([], 0), ([UnavailableError("no etcd")], 3), ([UnavailableError("no etcd"), DrillError("a token was lost")], 1)],
)
def test_the_verb_says_what_each_came_to(
    others: list[Exception],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import narwhal.drills as room

    drills = []
    for number, came in enumerate([{"gap_s": 0.12345678}, *others]):
        found = of(came, GOAL)
        drills.append(Drill(f"drill-{number}", found.fault, found.goal, found.how, found.play, found.plan, found.goals))
    monkeypatch.setattr(room, "DRILLS", drills)
    assert run_app(["drill", "run", "all", "--keep", str(tmp_path / "kept"), "--format", "json"]) == code
    told = json.loads(capsys.readouterr().out)["data"]["drills"]
    assert [one["outcome"] for one in told] == ["passed", "unavailable", "failed"][: len(told)]
    assert (told[0]["name"], told[0]["figures"]) == ("drill-0", {"gap_s": 0.1235})


@pytest.mark.parametrize(
    ("plan", "missing", "said"),
    [
        (Plan(small_disk=True), "root", "which takes root"),
        (Plan(apart="engines"), "root", "which takes root"),
        (Plan(store="etcd"), "etcd", "etcd is not here; install it: apt-get install etcd-server"),
        (Plan(store="etcd", apart="routers"), "openssl", "openssl is not here; install it: apt-get install openssl"),
    ],
)
def test_what_a_machine_lacks_is_said_with_the_next_step(
    plan: Plan, missing: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000 if missing == "root" else 0)
    monkeypatch.setattr("shutil.which", lambda name: None if name == missing else f"/usr/bin/{name}")
    with pytest.raises(UnavailableError, match=re.escape(said)):
        check_needs(plan)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    check_needs(plan)


def test_names_are_all_different() -> None:
    assert len({drill.name for drill in catalogue.DRILLS}) == len(catalogue.DRILLS) == 16
