"""Numbers that no simulation can be run with are refused as usage, not met as a bug."""

import pytest

from narwhal.cli.verbs import run_app


@pytest.mark.parametrize("option", ["--rate", "--seconds", "--compress"])
@pytest.mark.parametrize("value", ["inf", "nan", "-1", "1e9"])
def test_absurd_numbers_are_usage_errors(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run_app(["simulate", "--mix", "steady:code", "--curves", "demo", "--engines", "2", f"{option}={value}"])
    assert code == 2
    assert option in capsys.readouterr().err
