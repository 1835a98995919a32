"""What `narwhal-serve` says about its own arguments."""

import pytest

from narwhal.cli.serve import main


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "the following arguments are required: --fleet"),
        (["--fleet"], "argument --fleet: expected one argument"),
        (["--fleet", "fleet.yaml", "--port", "1"], "unrecognized arguments: --port 1"),
    ],
)
def test_wrong_arguments_read_like_those_of_narwhal(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"error[usage]: {says}\n  hint: narwhal-serve --fleet fleet.yaml")
