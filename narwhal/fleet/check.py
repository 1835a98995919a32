"""Checking fleet files and benchmark files: YAML, schema and meaning in one run."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from narwhal.fleet.draft import draft_benchmark, draft_fleet
from narwhal.fleet.facts import Facts
from narwhal.fleet.finding import Finding, SourceError
from narwhal.fleet.migrate import OLD_VERSIONS, read_current
from narwhal.fleet.model import Benchmark, Fleet
from narwhal.fleet.rules import run_rules
from narwhal.fleet.shape import check_shape
from narwhal.fleet.source import Source, parse_source, read_source

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Checked:
    """A fleet file and everything that is wrong with it."""

    source: Source
    fleet: Fleet | None
    """The typed fleet; None when something is wrong, or the file is a benchmark."""
    findings: tuple[Finding, ...]
    """In order of line and column."""
    older: str | None
    """The version the file is written in, when that is not the current one."""
    benchmark: Benchmark | None = None
    """The typed benchmark of a file that is one; None when something is wrong."""


def check_file(file: str) -> Checked:
    """Check a fleet file, or standard input for `-`. Raises `SourceError` when there is no one document to judge."""
    return check_source(read_source(file))


def check_text(text: str, file: str = "fleet.yaml") -> Checked:
    """Check a fleet file's text. Raises `SourceError` when there is no one document to judge."""
    return check_source(parse_source(text, file))


def check_source(source: Source) -> Checked:
    """Check a document that has been read."""
    if isinstance(source.data, dict) and source.data.get("kind") == "Benchmark":
        return _check_benchmark(source)
    older = None
    if isinstance(source.data, dict) and source.data.get("apiVersion") in OLD_VERSIONS and not source.findings:
        older = str(source.data["apiVersion"])
        source = read_current(source)
    if source.data is None and source.findings:
        return Checked(source, None, tuple(source.findings), older)
    shape = check_shape(source, Fleet)
    findings = [*source.findings, *shape.findings]
    if isinstance(source.data, dict):
        facts = Facts(draft_fleet(source.data, shape.broken), folder=Path(source.file).parent)
        findings += run_rules(source, facts)
    return Checked(source, None if findings else shape.document, _in_order(findings), older)


def _check_benchmark(source: Source) -> Checked:
    shape = check_shape(source, Benchmark)
    own = draft_benchmark(source.data, shape.broken)
    facts = Facts(draft_fleet({}, ()), own, Path(source.file).parent)
    findings = [*source.findings, *shape.findings, *run_rules(source, facts)]
    return Checked(source, None, _in_order(findings), None, None if findings else shape.document)


def _in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda f: (f.line, f.column, f.id)))


def check_section(data: Mapping[str, Any]) -> list[Finding]:
    """What the rules find in some sections of a fleet file, whose shape is right; rules that need others are silent."""
    source = parse_source(json.dumps(data), "fleet.yaml")
    return run_rules(source, Facts(draft_fleet(source.data, ())))


def fleet_files(names: Iterable[str]) -> list[str]:
    """Files to check: each name, and for a directory the fleet files below it, sorted.

    In a directory a file counts when it is YAML and says `kind: Fleet` or `kind: Benchmark`. Raises `SourceError` for a
    directory without one.
    """
    files: list[str] = []
    for name in names:
        if name == "-" or not Path(name).is_dir():
            files.append(name)
            continue
        found = [str(p) for p in sorted(Path(name).rglob("*")) if p.suffix in SUFFIXES and _is_fleet(p)]
        if not found:
            raise SourceError("no-fleet-files", "the directory holds no fleet file", name, "name the file itself")
        files += found
    return list(dict.fromkeys(files))


def _is_fleet(path: Path) -> bool:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return False
    words = (line.replace('"', "").replace("'", "").split("#")[0].split() for line in lines)
    return any(line in (["kind:", "Fleet"], ["kind:", "Benchmark"]) for line in words)
