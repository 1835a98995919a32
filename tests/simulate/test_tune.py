"""`narwhal simulate --tune`: what is searched, what it costs, and what the report says against its own result."""

import json
import random
from pathlib import Path

import pytest

from narwhal.cli.verbs import run_app
from narwhal.fleet import check_text
from narwhal.fleet.model import Controller
from narwhal.simulate import tune
from narwhal.simulate.parameters import TuneError, broken_rules, draw_valid, fragment, parse_parameter, with_values
from narwhal.simulate.tune import Candidate, Search, best_of, beyond_chance, cost, most_candidates, rounds

BASE = ["simulate", "--curves", "8b-h100", "--engines", "4", "--seconds", "45", "--rate", "12"]
MIX = ["--mix", "turning:code,reas:20"]
SEARCH = [*BASE, *MIX, "--seeds", "1,2", "--budget", "10", "--tune", "controller.reactive.movement_margin=0.01..10"]


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object], str]:
    code = run_app([*arguments, "--format", "json"])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


# What is searched


def test_kind_limits_unit_and_meaning_come_from_the_fleet_files_schema() -> None:
    cooldown = parse_parameter("controller.thresholds.cooldown_s=5..60", Controller())
    assert (cooldown.low, cooldown.high, cooldown.unit, cooldown.default) == (5.0, 60.0, "s", 0.0)
    assert "Least time between two decisions" in cooldown.about
    assert parse_parameter("controller.reactive.confirmations", Controller()).searched == "1 to 8"
    assert parse_parameter("controller.projection.occupancy_target", Controller()).high == 1.0
    assert parse_parameter("controller.projection.overflow", Controller()).choices == (False, True)
    assert parse_parameter("controller.policy", Controller()).choices == ("reactive", "projection")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("controller.thresholds.cooldown=5..60", "controller.thresholds.cooldown_s"),
        ("slo.ttft_s=1..2", "no parameter of the controller"),
        ("controller.thresholds=1..2", "no parameter of the controller"),
        ("controller.thresholds.cooldown_s=60..5", "ends at 5, which is not above 60"),
        ("controller.thresholds.cooldown_s=-5..5", "greater than or equal to 0"),
        ("controller.thresholds.cooldown_s=5s..60s", "'5s' is not a number"),
        ("controller.thresholds.cooldown_s=0..inf", "'inf' is not a finite number"),
        ("controller.thresholds.cooldown_s", "is 0 now"),
        ("controller.reactive.confirmations=1..2.5", "'2.5' is not a whole number"),
        ("controller.projection.overflow=maybe", "'maybe' is not true or false"),
        ("controller.policy=magic", "controller.policy is magic"),
        ("controller.policy=a..b", "list of values"),
    ],
)
def test_a_parameter_that_cannot_be_searched_is_named(text: str, says: str) -> None:
    with pytest.raises(TuneError) as caught:
        parse_parameter(text, Controller())
    assert says in str(caught.value)


def test_drawn_values_stay_in_their_range_and_wide_ranges_are_drawn_by_ratio() -> None:
    rng = random.Random(0)
    wide = parse_parameter("controller.reactive.window_s=1..1000", Controller())
    drawn = [wide.draw(rng) for _ in range(400)]
    assert all(isinstance(value, float) and 1 <= value <= 1000 for value in drawn)
    below = sum(float(value) < 31.6 for value in drawn)
    assert 150 < below < 250  # half of them below the geometric middle
    whole = parse_parameter("controller.reactive.confirmations=1..3", Controller())
    assert {whole.draw(rng) for _ in range(60)} == {1, 2, 3}


def test_candidates_pass_the_rules_of_the_fleet_file_together() -> None:
    texts = ("controller.reactive.evidence_span_s=1..20", "controller.reactive.evidence_max_span_s=1..20")
    parameters = [parse_parameter(text, Controller()) for text in texts]
    rng = random.Random(0)
    for _ in range(20):
        values = draw_valid(parameters, Controller(), rng)
        chosen = {tuple(name.split(".")[1:]): value for name, value in values.items()}
        assert broken_rules(with_values(Controller(), chosen)) == []
    impossible = [parse_parameter("controller.reactive.evidence_span_s=11..20", Controller())]
    with pytest.raises(TuneError, match="NW060"):
        draw_valid(impossible, Controller(), rng)


def test_the_best_values_are_a_part_of_a_fleet_file() -> None:
    values = {
        "controller.reactive.act_at": 0.9,
        "controller.reactive.confirmations": 3,
        "controller.thresholds.dwell_s": 2.5,
        "controller.projection.overflow": True,
    }
    text = fragment(values)
    source = check_text(text).source
    assert source.data == {
        "controller": {
            "reactive": {"act_at": 0.9, "confirmations": 3},
            "thresholds": {"dwell_s": 2.5},
            "projection": {"overflow": True},
        }
    }


# What it costs


def test_halving_gives_the_better_half_twice_as_many_runs() -> None:
    assert rounds(12, 1, 3) == [(12, 1), (6, 2), (3, 3)]
    assert cost(rounds(12, 1, 3)) == 12 + 6 + 3
    assert rounds(4, 2, 4) == [(4, 2), (2, 4)]
    assert rounds(1, 1, 4) == [(1, 1), (1, 2), (1, 4)]


@pytest.mark.parametrize("budget", [6, 24, 60, 61])
def test_a_search_takes_as_many_candidates_as_its_budget_lets_it(budget: int) -> None:
    count = most_candidates(budget, 1, 3)
    assert 3 + cost(rounds(count, 1, 3)) <= budget < 3 + cost(rounds(count + 1, 1, 3))


def test_a_budget_that_is_too_small_says_what_is_needed() -> None:
    with pytest.raises(TuneError, match="at least 6"):
        most_candidates(5, 1, 3)


def test_the_best_is_one_of_those_with_the_most_runs_or_what_is_there() -> None:
    default = Candidate({})
    lucky, steady, worse = (Candidate({"controller.reactive.act_at": value}) for value in (0.5, 0.6, 0.7))
    lucky.gains, steady.gains, worse.gains = [0.5], [0.1, 0.1], [-0.1, -0.1]
    assert best_of([lucky, steady, worse], default) is steady
    assert best_of([lucky, worse], default) is default
    assert best_of([], default) is default


@pytest.mark.parametrize(
    ("gains", "sure"),
    [([0.1, 0.1, 0.12], True), ([0.3, -0.1, 0.0], False), ([-0.1, -0.2], False), ([0.1], True), ([], False)],
)
def test_a_gain_holds_out_when_it_exceeds_its_error(gains: list[float], sure: bool) -> None:
    assert beyond_chance(gains) is sure


# What is reported


def test_the_best_values_are_judged_on_runs_that_did_not_choose_them(capsys: pytest.CaptureFixture[str]) -> None:
    code, document, err = call(capsys, *SEARCH)
    assert code == 0
    data = document["data"]["tune"]  # type: ignore[index]
    assert data["policy"] == "reactive"
    assert data["search"] == {"runs": 9, "candidates": 5, "interrupted": False}
    assert [run["seed"] for run in data["tuned_on"]["runs"]] == [1, 2]
    assert [run["seed"] for run in data["held_out"]["runs"]] == [21, 22]
    for side in ("tuned_on", "held_out"):
        pairs = zip(data[side]["best"]["by_run"], data[side]["default"]["by_run"], strict=True)
        assert data[side]["gain_by_run"] == pytest.approx([best - default for best, default in pairs])
        gain = data[side]["gain"]
        assert gain["least"] <= gain["mean"] <= gain["largest"]
    assert "run 9 of 9" in err
    assert "run 1 of 9: turning:code,reas:20, seed 1: as it is" in err


def test_the_same_search_finds_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (call(capsys, *SEARCH)[1]["data"] for _ in range(2))
    assert first == second


def test_parameters_that_change_nothing_are_said_to(capsys: pytest.CaptureFixture[str]) -> None:
    tune_on = ["--tune-on", "1", "--report-on", "2", "--report-on", "steady:conv", "--budget", "4"]
    code, document, _ = call(capsys, *BASE, *MIX, *tune_on, "--tune", "controller.projection.gain=0.1..0.2")
    data = document["data"]["tune"]  # type: ignore[index]
    assert code == 0
    assert data["best"] == {}
    assert any("reactive may not read these parameters" in warning for warning in data["warnings"])
    assert [(run["traffic"], run["seed"]) for run in data["held_out"]["runs"]] == [("steady:conv", 2)]


def test_a_gain_that_does_not_hold_out_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(self: Search, candidate: Candidate, on: tune.Run, base: float | None) -> None:
        better = 0.1 if candidate.values and on.seed < 20 else 0.0
        candidate.measured.append(tune.Measured(0.8 + better, 3))
        candidate.gains.append(better)

    monkeypatch.setattr(Search, "measure", measure)
    assert run_app(SEARCH) == 0
    out = capsys.readouterr().out
    assert "warning: the gain does not hold out" in out
    assert "2 of 2" in out
    assert "controller:\n  reactive:\n    movement_margin: " in out


@pytest.mark.parametrize(("stops_at", "held_out_runs"), [((6,), 2), ((6, 9), 1), ((1,), 2)])
def test_ctrl_c_gives_the_best_so_far(
    stops_at: tuple[int, ...], held_out_runs: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = 0

    def measure(self: Search, candidate: Candidate, on: tune.Run, base: float | None) -> None:
        nonlocal calls
        calls += 1
        if calls in stops_at:
            raise KeyboardInterrupt
        candidate.measured.append(tune.Measured(0.9 if candidate.values else 0.8, 3))
        candidate.gains.append(0.1 if candidate.values else 0.0)
        self.runs += 1

    monkeypatch.setattr(Search, "measure", measure)
    code, document, _ = call(capsys, *SEARCH)
    data = document["data"]["tune"]  # type: ignore[index]
    assert code == 130
    assert document["status"] == "interrupted"
    assert data["search"]["interrupted"]
    assert bool(data["best"]) == (stops_at != (1,))
    assert len(data["held_out"]["runs"]) == held_out_runs
    assert len(data["held_out"]["default"]["by_run"]) == len(data["held_out"]["best"]["by_run"]) == held_out_runs


def write_trace(path: Path, gap_s: float) -> Path:
    rows = "".join(f"{n * gap_s},{500 + n},{20}\n" for n in range(300))
    path.write_text("timestamp,input_length,output_length\n" + rows)
    return path


def test_a_trace_is_tuned_on_and_another_one_reported_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = write_trace(tmp_path / "one.csv", 0.2), write_trace(tmp_path / "other.csv", 0.25)
    plain = ["simulate", "--curves", "8b-h100", "--engines", "4", "--tune", "controller.reactive.act_at=0.5..1"]
    traces = ["--tune-on", str(one), "--report-on", str(other), "--budget", "3"]
    code, document, _ = call(capsys, *plain, *traces)
    data = document["data"]["tune"]  # type: ignore[index]
    assert code == 0
    assert [run["traffic"] for run in data["tuned_on"]["runs"]] == ["one.csv"]
    assert [run["traffic"] for run in data["held_out"]["runs"]] == ["other.csv"]
    assert any("every request meets its targets already" in warning for warning in data["warnings"])
    code, document, _ = call(capsys, *plain, "--tune-on", str(one), "--budget", "3")
    assert code == 2
    assert "brings its own arrivals" in document["errors"][0]["message"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([*MIX, "--report-on", "12"], "tune", "seed 12 is in --tune-on and in --report-on"),
        ([], "tune", "nothing to tune on"),
        ([*MIX, "--policy", "static"], "tune", "'static' has no parameters to tune"),
        ([*MIX, "--tune", "controller.reactive.act_at=1..2"], "tune", "controller.reactive.act_at twice"),
        ([*MIX, "--budget", "3"], "tune", "at least 6"),
        ([*MIX, "--plot", "a.png"], "usage", "--plot does not go with --tune"),
        ([*MIX, "--replay", "a"], "usage", "--replay does not go with --tune"),
        (["--tune-on", "nowhere.csv"], "trace", "nowhere.csv: cannot read it"),
    ],
)
def test_mistakes_are_named(arguments: list[str], code: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, document, _ = call(capsys, *BASE, "--tune", "controller.reactive.act_at=0.5..1", *arguments)
    error = document["errors"][0]  # type: ignore[index]
    assert exit_code == 2
    assert error["code"] == code
    assert says in error["message"]


def test_traffic_to_tune_on_needs_something_to_tune(capsys: pytest.CaptureFixture[str]) -> None:
    code, document, _ = call(capsys, *BASE, *MIX, "--tune-on", "1,2")
    assert code == 2
    assert "need --tune" in document["errors"][0]["message"]  # type: ignore[index]
