"""Words for people: what was meant by a word that is not known, lists, counts."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: object, known: Iterable[str]) -> str | None:
    """The known word most like `word`, or None when none is close."""
    lowered = {name.lower().replace("-", "_"): name for name in known}
    matches = get_close_matches(str(word).lower().replace("-", "_"), lowered, n=1, cutoff=0.6)
    return lowered[matches[0]] if matches else None


def one_of(known: Iterable[str]) -> str:
    """The known words as a list for people; at most twelve, sorted."""
    names = sorted(known)
    shown = ", ".join(names[:12])
    return shown + (f", … ({len(names)} in all)" if len(names) > 12 else "") if names else "none"


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 engine`, `2 engines`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
