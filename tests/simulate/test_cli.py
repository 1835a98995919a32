import json
import sys
from pathlib import Path

import pytest

from narwhal.cli.verbs import run_app

BASE = ["simulate", "--curves", "8b-h100", "--engines", "4", "--seeds", "3", "--seconds", "60"]


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run_app([*BASE, *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_policies_stand_side_by_side_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(
        capsys,
        "--mix",
        "turning:code,reas:20",
        "--rate",
        "8",
        "--policy",
        "static:2p2d,reactive,clairvoyant",
        "--format",
        "json",
    )
    document = json.loads(out)
    assert code == 0
    assert document["command"] == "simulate"
    policies = document["data"]["policies"]
    assert list(policies) == ["static:2p2d", "reactive", "clairvoyant"]
    for figures in policies.values():
        assert 0 <= figures["attainment"] <= 1
        assert figures["ttft_p50_s"] <= figures["ttft_p90_s"] <= figures["ttft_p99_s"]
        assert figures["goodput_rps"] is None
    assert policies["clairvoyant"]["regret"] == 0
    assert "static:2p2d, seed 3" in err


def test_goodput_is_searched_on_demand_and_the_table_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "--mix", "steady:conv", "--rate", "10", "--policy", "static:2p2d", "--goodput")
    assert code == 0
    assert "goodput" in out.splitlines()[1]
    assert "static:2p2d" in out
    assert all(line == line.rstrip() for line in out.splitlines())


def test_a_trace_runs_at_its_own_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.csv"
    rows = "".join(f"{n * 0.2},{500 + n},{20}\n" for n in range(300))
    trace.write_text("timestamp,input_length,output_length\n" + rows)
    code, out, _ = call(capsys, "--trace", str(trace), "--policy", "static:2p2d", "--format", "json")
    data = json.loads(out)["data"]
    assert code == 0
    assert data["run"]["rate_rps"] == pytest.approx(5.0, rel=0.02)
    assert data["policies"]["static:2p2d"]["attainment"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--mix", "turning:code,reas"], "traffic", "turning:code,reas:60"),
        ([], "traffic", "one of --trace FILE and --mix"),
        (["--mix", "steady:conv", "--policy", "magic"], "policy", "projection"),
        (["--mix", "steady:conv", "--policy", "static:9p9d"], "policy", "4 engines"),
        (["--mix", "steady:conv", "--seeds", "a"], "usage", "--seeds"),
        (["--trace", "nowhere.csv"], "trace", "nowhere.csv: cannot read it: No such file or directory"),
        (["--replay", "nowhere.jsonl"], "usage", "--replay brings its own fleet and traffic: --seconds has no effect"),
        (["--mix", "steady:conv", "--plot", "nowhere/a.png"], "plot", "there is no folder nowhere"),
    ],
)
def test_mistakes_are_named(arguments: list[str], code: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, out, _ = call(capsys, *arguments, "--format", "json")
    error = json.loads(out)["errors"][0]
    assert exit_code == 2
    assert error["code"] == code
    assert says in error["message"]


def test_a_picture_that_cannot_be_drawn_stops_the_run_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = call(capsys, "--mix", "steady:conv", "--plot", str(tmp_path / "a.png"))
    assert code == 2
    assert err.startswith("error[plot]: matplotlib is not installed")


def test_a_trace_that_is_not_text_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe")
    code, _, err = call(capsys, "--trace", str(tmp_path / "t.csv"))
    assert code == 2
    assert "t.csv: cannot read it: it is not UTF-8 text" in err


def test_a_recording_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["simulate", "--replay", "nowhere.jsonl", "--format", "json"]) == 2
    [problem] = json.loads(capsys.readouterr().out)["errors"]
    assert (problem["code"], problem["message"]) == (
        "replay",
        "nowhere.jsonl: cannot read it: No such file or directory",
    )


def test_a_fleet_without_profiles_keeps_its_roles(capsys: pytest.CaptureFixture[str]) -> None:
    mix = ["--mix", "turning:code,reas:20", "--rate", "8", "--policy", "reactive", "--format", "json"]
    moves = []
    for more in ([], ["--prior", "demo"]):
        code, out, _ = call(capsys, *mix, *more)
        assert code == 0
        moves.append(json.loads(out)["data"]["policies"]["reactive"]["moves"])
    assert moves[0] > 0
    assert moves[1] == 0


def test_a_prior_says_nothing_to_a_recording(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["simulate", "--replay", "nowhere", "--prior", "demo"]) == 2
    assert "--prior has no effect" in capsys.readouterr().err
