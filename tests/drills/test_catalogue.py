"""The drills, as they are listed and documented; and the verb's words about what they came to."""

import re
from pathlib import Path

import pytest

from narwhal.cli.verbs import run_app
from narwhal.drills import DRILLS

PAGE = (Path(__file__).parents[2] / "docs/drills.md").read_text()


def test_the_page_has_every_drill_with_its_goal_and_what_strict_judges() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|$", PAGE, re.MULTILINE)
    strict = {drill.name: ", ".join(f"`{goal.words}`" for goal in drill.goals) for drill in DRILLS}
    assert rows == [(d.name, d.fault, d.goal, d.how, strict[d.name]) for d in DRILLS]


def test_the_verb_lists_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["drill", "list"]) == 0
    listed = re.findall(r"^([\w-]+): ", capsys.readouterr().out, re.MULTILINE)
    assert listed == [drill.name for drill in DRILLS]


def test_a_drill_that_is_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["drill", "run", "engine-sings"]) == 2
    assert "there is no drill 'engine-sings'" in capsys.readouterr().err
