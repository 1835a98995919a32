"""Lengths of time as people type them."""

import re

from narwhal.cli.output import CommandError, Problem

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)")


def seconds_of(text: str) -> float:
    """`90s`, `10m`, `2h`, `1d`, or a plain number of seconds. Raises `CommandError`."""
    match = _SPAN.fullmatch(text)
    if match is None or float(match[1]) == 0:
        raise CommandError(Problem("usage", f"{text!r} is no length of time", hint="such as 90s, 10m or 2h"))
    return float(match[1]) * _UNITS[match[2] or "s"]
