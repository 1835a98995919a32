"""The follow stream: lines of JSON that tell one router what the other knows (schema: `schemas/follow/v1.json`)."""

from collections.abc import Callable
from typing import Any

import msgspec

from narwhal.control.snapshot import PARTS, Cut

FOLLOW = "/narwhal/follow"
NAMES = frozenset(("fields", "accounts", *PARTS))
"""The pieces of what control knows; together they are a state without requests."""


class FollowLine(msgspec.Struct, frozen=True):
    """One line: the first has every piece, a later one those that have changed since."""

    now_t: float
    """Present time on the clock of the router that leads, in seconds; every time in it is on the same."""
    version: str
    """Of that router: state is read by the same version only."""
    tokens_per_byte: float
    """Tokens of a prompt for each byte of JSON."""
    pieces: dict[str, msgspec.Raw]
    """`fields`, `accounts` and the parts of control, as in a snapshot among the journal's events."""


def pieces(cut: Cut, pause: Callable[[], None]) -> dict[str, bytes]:
    """The pieces of a cut without residents; pauses after each part, since this runs beside a loop."""
    state = cut.state(pause)
    encode = msgspec.json.encode
    parts = dict(zip(PARTS, map(bytes, state["parts"]), strict=True))
    return {"fields": encode(state["fields"]), "accounts": encode(state["accounts"]), **parts}


def state_of(known: dict[str, msgspec.Raw]) -> dict[str, Any]:
    """The state that pieces come to, for `succeed`. Raises `KeyError` where one is missing."""
    decode = msgspec.json.decode
    return {
        "fields": decode(known["fields"]),
        "accounts": decode(known["accounts"]),
        "requests": [],
        "parts": [decode(known[name]) for name in PARTS],
    }
