"""Setting single values in a fleet file, with every other byte as the operator wrote it."""

import copy
import io
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

from narwhal.deploy.plainyaml import scalar
from narwhal.fleet.finding import Path
from narwhal.fleet.model import Fleet
from narwhal.fleet.source import parse_source


def with_revision(text: str, revision: str) -> str:
    """The fleet file with `metadata.revision`."""
    return with_value(text, ("metadata", "revision"), revision)


def with_addresses(text: str, fleet: Fleet, addresses: Mapping[str, str]) -> str:
    """The fleet file as its hosts get it: with the fabric addresses that gate A found, where it names none."""
    for i, host in enumerate(fleet.hosts):
        if host.name in addresses and host.fabric.interface and host.fabric.address is None:
            text = with_value(text, ("hosts", i, "fabric", "address"), addresses[host.name])
    return text


def with_host_key(text: str, index: int, key: str) -> str:
    """The fleet file with the pinned SSH key of a host, by its place in the list."""
    return with_value(text, ("hosts", index, "ssh", "host_key"), key)


def with_value(text: str, path: Path, value: str) -> str:
    """The text with one value of a mapping set, which is there already; all else, comments and spaces, stays.

    Where that place is shared (an anchor), the file is written anew with comments and order kept.
    """
    wanted = copy.deepcopy(parse_source(text, "").data)
    _at(wanted, path[:-1])[path[-1]] = value
    edited = _edited(text, path, value)
    if parse_source(edited, "").data == wanted:
        return edited
    return _written_anew(text, path, value)


def _at(tree: Any, path: Path) -> Any:
    for part in path:
        tree = tree[part]
    return tree


def _edited(text: str, path: Path, value: str) -> str:
    mapping = YAML(typ="safe", pure=True).compose(text)
    for part in path[:-1]:
        mapping = _child(mapping, part)
    assert isinstance(mapping, MappingNode)
    key = str(path[-1])
    for name, node in mapping.value:
        if name.value == key:
            return text[: node.start_mark.index] + scalar(value) + text[node.end_mark.index :]
    line = f"{key}: {scalar(value)}"
    if mapping.flow_style:
        at = mapping.value[-1][1].end_mark.index
        return f"{text[:at]}, {line}{text[at:]}"
    return _inserted(text, mapping, line)


def _child(node: Node, part: int | str) -> Node:
    if isinstance(part, int):
        found: Node = node.value[part]
        return found
    named: Node = next(value for name, value in node.value if name.value == part)
    return named


def _inserted(text: str, mapping: MappingNode, line: str) -> str:
    """A line more in a block mapping: after the first entry of one line, else before the first of all."""
    first = mapping.value[0][0].start_mark
    indent = " " * first.column
    for _, node in mapping.value:
        if isinstance(node, ScalarNode) and node.start_mark.line == node.end_mark.line:
            at = text.find("\n", node.end_mark.index)
            at = len(text) if at < 0 else at
            return f"{text[:at]}\n{indent}{line}{text[at:]}"
    return f"{text[: first.index]}{line}\n{indent}{text[first.index :]}"


def _written_anew(text: str, path: Path, value: str) -> str:
    yaml = YAML(typ="rt", pure=True)
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    tree = yaml.load(text)
    _at(tree, path[:-1])[path[-1]] = value
    out = io.StringIO()
    yaml.dump(tree, out)
    return out.getvalue()
