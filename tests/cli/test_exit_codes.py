"""The exit codes in the documentation are those of the code."""

import re
from pathlib import Path

from narwhal.cli.output import STATUSES

PAGE = Path(__file__).parents[2] / "docs/reference/exit-codes.md"


def test_documented_exit_codes_are_the_codes() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert {status: int(code) for status, code in rows} == dict(STATUSES)
