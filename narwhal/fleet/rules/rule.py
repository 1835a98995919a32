"""What a rule is: a stable id, an explanation, and a function from facts to hits."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from narwhal.fleet.draft import Unknown
from narwhal.fleet.facts import Facts
from narwhal.fleet.finding import Finding, Path
from narwhal.fleet.source import Source


@dataclass(frozen=True, slots=True)
class Hit:
    """One place where a rule is broken."""

    path: Path
    message: str
    expected: str
    value: object = None
    hint: str | None = None
    """How to fix it here; the rule's own advice when None."""
    key: bool = False
    """Point at the key, not at its value."""


Check = Callable[[Facts], Iterator[Hit]]


@dataclass(frozen=True, slots=True)
class Rule:
    """An entry of the catalogue."""

    id: str
    title: str
    means: str
    """What is wrong, and what would happen."""
    fix: str
    check: Check | None = None
    """None for what the YAML reader or the schema finds."""


RULES: dict[str, Rule] = {}
"""The catalogue, by id."""


def describe(id_: str, title: str, *, means: str, fix: str) -> None:
    """Enter into the catalogue what the YAML reader or the schema finds."""
    RULES[id_] = Rule(id_, title, means, fix)


def rule(id_: str, title: str, *, means: str, fix: str) -> Callable[[Check], Check]:
    """Make a function a rule."""

    def enter(check: Check) -> Check:
        RULES[id_] = Rule(id_, title, means, fix, check)
        return check

    return enter


def run_rules(source: Source, facts: Facts) -> list[Finding]:
    """All findings of all rules. A rule that meets something unknown ends there, with what it found so far."""
    findings: list[Finding] = []
    for entry in RULES.values():
        if entry.check is None:
            continue
        try:
            findings.extend(_finding(source, entry, hit) for hit in entry.check(facts))
        except Unknown:
            continue
    return findings


def _finding(source: Source, entry: Rule, hit: Hit) -> Finding:
    return source.finding(
        entry.id,
        hit.path,
        hit.message,
        value=hit.value,
        expected=hit.expected,
        hint=hit.hint or entry.fix,
        key=hit.key,
    )
