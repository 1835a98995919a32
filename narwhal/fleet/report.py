"""Findings for people and for machines: text, GitHub annotations, SARIF."""

import json
from collections.abc import Sequence
from typing import Any

from narwhal.fleet.finding import Finding
from narwhal.fleet.rules import RULES


def as_text(findings: Sequence[Finding]) -> str:
    """One paragraph for each finding: place, id and message, then what was expected and how to fix it."""
    return "\n".join(
        f"{f.file}:{f.line}:{f.column}: {f.id} {f.message}\n    expected: {f.expected}\n    fix: {f.hint}"
        for f in findings
    )


def as_github(findings: Sequence[Finding]) -> str:
    """Workflow commands that annotate the lines of a pull request."""
    return "\n".join(
        f"::error file={_property(f.file)},line={f.line},col={f.column},"
        f"title={_property(f'{f.id} {RULES[f.id].title}')}"
        f"::{_message(f'{f.message}; expected: {f.expected}; fix: {f.hint}')}"
        for f in findings
    )


def as_sarif(findings: Sequence[Finding], version: str) -> str:
    """A SARIF 2.1.0 log of one run, with the whole catalogue of rules."""
    ids = list(RULES)
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "narwhal", "version": version, "rules": [_sarif_rule(id_) for id_ in ids]}},
                "columnKind": "unicodeCodePoints",
                "results": [_sarif_result(f, ids.index(f.id)) for f in findings],
            }
        ],
    }
    return json.dumps(log, indent=2, ensure_ascii=False)


def rules_text() -> str:
    """The catalogue for a terminal."""
    return "\n\n".join(f"{r.id}  {r.title}\n    {r.means}\n    Fix: {r.fix}" for r in _catalogue())


def rules_markdown() -> str:
    """The catalogue as a page of the docs."""
    head = (
        "# Rules of the fleet file\n\n"
        "What `narwhal validate` finds. Ids are stable: a rule that goes away leaves its number unused.\n"
        "This page is `narwhal validate --rules --format markdown`; a test compares the two.\n"
    )
    return head + "".join(f"\n## {r.id}: {r.title}\n\n{r.means}\n\nFix: {r.fix}\n" for r in _catalogue())


def rules_data() -> list[dict[str, str]]:
    """The catalogue as data."""
    return [{"id": r.id, "title": r.title, "means": r.means, "fix": r.fix} for r in _catalogue()]


def _catalogue() -> list[Any]:
    return [RULES[id_] for id_ in sorted(RULES)]


def _sarif_rule(id_: str) -> dict[str, Any]:
    entry = RULES[id_]
    return {
        "id": id_,
        "name": "".join(word.capitalize() for word in entry.title.replace("-", " ").split()),
        "shortDescription": {"text": entry.title},
        "fullDescription": {"text": entry.means},
        "help": {"text": entry.fix},
        "defaultConfiguration": {"level": "error"},
    }


def _sarif_result(finding: Finding, index: int) -> dict[str, Any]:
    return {
        "ruleId": finding.id,
        "ruleIndex": index,
        "level": "error",
        "message": {"text": f"{finding.message}. Expected: {finding.expected}. Fix: {finding.hint}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": "stdin" if finding.file == "-" else finding.file.replace("\\", "/")},
                    "region": {"startLine": finding.line, "startColumn": finding.column},
                }
            }
        ],
    }


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
