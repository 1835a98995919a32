"""Older spellings of the fleet file: a reader for each, and the rewrite that keeps comments."""

import io
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from narwhal.documents import API_VERSION
from narwhal.fleet.finding import SourceError
from narwhal.fleet.source import Source, parse_source

Tree = MutableMapping[str, Any]
Step = Callable[[Tree], list[str]]
"""Changes a document in place to the next version and says what it changed, one sentence each."""


@dataclass(frozen=True, slots=True)
class Migration:
    """From one version to the next."""

    source: str
    target: str
    step: Step


@dataclass(frozen=True, slots=True)
class Migrated:
    """A rewritten file."""

    text: str
    changes: tuple[str, ...]
    """What was changed; empty when the file was current."""
    version: str
    """The version it had."""


def migrate_source(source: Source) -> Migrated:
    """Rewrite a fleet file as the current version, comments and order kept.

    Raises `SourceError` when it is not YAML, or of a version that is not known.
    """
    if source.findings:
        first = source.findings[0]
        raise SourceError(first.id, first.message, first.file, first.hint, first.line)
    found = source.data.get("apiVersion") if isinstance(source.data, dict) else None
    if found != API_VERSION and found not in OLD_VERSIONS:
        known = ", ".join([*OLD_VERSIONS, API_VERSION])
        line = source.place(("apiVersion",)).line
        text = f"apiVersion {found!r} is not known" if found is not None else "apiVersion is missing"
        raise SourceError("unknown-version", text, source.file, f"known are {known}", line)
    if found == API_VERSION:
        return Migrated(source.text, (), str(found))
    yaml = YAML(typ="rt", pure=True)
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    tree: Tree = yaml.load(source.text)
    changes = [change for step in _path(str(found)) for change in step(tree)]
    out = io.StringIO()
    yaml.dump(tree, out)
    return Migrated(out.getvalue(), tuple(changes), str(found))


def read_current(source: Source) -> Source:
    """The source as the current version: itself, or its migration in memory (places are those of the rewrite)."""
    if not isinstance(source.data, dict) or source.data.get("apiVersion") not in OLD_VERSIONS:
        return source
    return parse_source(migrate_source(source).text, source.file)


def _path(version: str) -> list[Step]:
    steps: list[Step] = []
    while version != API_VERSION:
        migration = next(m for m in MIGRATIONS if m.source == version)
        steps.append(migration.step)
        version = migration.target
    return steps


def _rename(tree: Tree, old: str, new: str, where: str = "") -> list[str]:
    """Rename a key in its place, with its comment; nothing when it is not there or the new one already is."""
    if old not in tree or new in tree:
        return []
    position = list(tree).index(old)
    value = tree.pop(old)
    if isinstance(tree, CommentedMap):
        comment = tree.ca.items.pop(old, None)
        tree.insert(position, new, value)
        if comment is not None:
            tree.ca.items[new] = comment
    else:
        tree[new] = value
    return [f"{where}{old} -> {where}{new}"]


def _nest(tree: Tree, key: str, inner: str) -> None:
    """Make the value of `key` that of `inner` in a mapping of its own; the comment goes with the value."""
    mapping = CommentedMap({inner: tree[key]})
    if isinstance(tree, CommentedMap) and key in tree.ca.items:
        mapping.ca.items[inner] = tree.ca.items.pop(key)
    tree[key] = mapping


def _section(tree: Tree, key: str) -> Tree:
    part = tree.get(key)
    return part if isinstance(part, MutableMapping) else {}


def _milliseconds(tree: Tree, old: str, new: str, where: str) -> list[str]:
    if isinstance(tree.get(old), int | float) and not isinstance(tree[old], bool) and new not in tree:
        tree[old] = tree[old] / 1000
        return [f"{change}, in seconds" for change in _rename(tree, old, new, where)]
    return []


def _from_v1alpha1(tree: Tree) -> list[str]:
    """The spelling before the first release: SLO in milliseconds, router ports side by side."""
    changes = []
    slo = _section(tree, "slo")
    changes += _milliseconds(slo, "ttft_ms", "ttft_s", "slo.")
    changes += _milliseconds(slo, "tpot_ms", "tpot_s", "slo.")
    routers = _section(tree, "routers")
    changes += _rename(routers, "api_port", "port", "routers.")
    if "admin_port" in routers and "admin" not in routers:
        changes += _rename(routers, "admin_port", "admin", "routers.")
        _nest(routers, "admin", "port")
        changes[-1] = "routers.admin_port -> routers.admin.port"
    tree["apiVersion"] = API_VERSION
    return [*changes, f"apiVersion -> {API_VERSION}"]


MIGRATIONS = (Migration("narwhal/v1alpha1", "narwhal/v1", _from_v1alpha1),)
OLD_VERSIONS = tuple(migration.source for migration in MIGRATIONS)
"""Versions that are still read."""
