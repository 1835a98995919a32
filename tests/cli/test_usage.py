"""What the verbs say about their own options."""

import pytest

from narwhal.cli.verbs import run_app

VERBS = [
    ["simulate"],
    ["validate"],
    ["show"],
    ["migrate"],
    ["schema"],
    ["version"],
    ["demo"],
    ["dev", "init"],
    ["dev", "up"],
    ["engine", "simulate"],
    ["hold"],
    ["move"],
    ["status"],
]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_the_help_names_values_as_people_do(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app([*verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: narwhal {' '.join(verb)} [OPTIONS]")
    for python in ("<float", "<int", "<str", "<path", "<list", "{file}", "[file]", "<text|"):
        assert python not in shown


def test_arguments_stand_in_the_usage_line_and_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    run_app(["show", "--help"])
    shown = capsys.readouterr().out
    assert "narwhal show [OPTIONS] FILE\n" in shown
    assert "\n  FILE  Fleet file" in shown
    run_app(["validate", "--help"])
    shown = capsys.readouterr().out
    assert "narwhal validate [OPTIONS] [FILE]...\n" in shown
    assert "\n  FILE...  Fleet files" in shown
    run_app(["drain", "--help"])
    assert "narwhal drain [OPTIONS] ENGINE|HOST...\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["demo", "--seconds", "5"], "--seconds 5: at least 10"),
        (["demo", "--seconds", "4000"], "--seconds 4000: at most 3600"),
        (["demo", "--engines", "9"], "--engines 9: at most 8"),
        (["demo", "--engines", "2.5"], "--engines 2.5: it is not a whole number"),
        (["demo", "--seconds", "soon"], "--seconds soon: it is not a number"),
        (["demo", "--seed", "x"], "--seed x: it is not a whole number"),
        (["simulate", "--rate", "0"], "--rate 0: at least 0.001"),
        (["engine", "simulate", "--port", "70000"], "--port 70000: at most 65535"),
        (["simulate", "--admission", "x"], "'--admission': 'x' is not one of 'open', 'predictive'"),
        (["show"], "Missing argument 'FILE'"),
    ],
)
def test_a_usage_error_names_what_was_typed(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(arguments) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error[usage]: ")
    assert says in shown
    assert "--help" in shown
