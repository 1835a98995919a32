"""Reading YAML with the place of every key and value kept, so that a finding can point at what it means."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from narwhal.fleet.finding import Finding, Path, SourceError, dotted

MAX_BYTES = 4 * 1024 * 1024
"""Largest file that is read: a fleet of hundreds of hosts is a tenth of it."""
MAX_VALUES = 200_000
"""Most values in a document once its aliases are followed; more is an attack or an accident."""
_MERGE = "tag:yaml.org,2002:merge"
_CONSTRUCT = {
    "tag:yaml.org,2002:null": SafeConstructor.construct_yaml_null,
    "tag:yaml.org,2002:bool": SafeConstructor.construct_yaml_bool,
    "tag:yaml.org,2002:int": SafeConstructor.construct_yaml_int,
    "tag:yaml.org,2002:float": SafeConstructor.construct_yaml_float,
}


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file, both 1-based."""

    line: int
    column: int


@dataclass
class Source:
    """A YAML document as plain data, with the place of each key and value."""

    file: str
    text: str
    data: Any = None
    keys: dict[Path, Mark] = field(default_factory=dict)
    values: dict[Path, Mark] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    """What is wrong with the YAML itself: syntax (then `data` is None), duplicate keys, odd keys."""

    def place(self, path: Path, *, key: bool = False) -> Mark:
        """Where the value at `path` stands (or its key); for one that is not there, its nearest ancestor."""
        marks = (self.keys, self.values) if key else (self.values, self.keys)
        for end in range(len(path), -1, -1):
            for known in marks if end == len(path) else (self.keys, self.values):
                if path[:end] in known:
                    return known[path[:end]]
        return Mark(1, 1)

    def finding(
        self,
        id_: str,
        path: Path,
        message: str,
        *,
        value: object = None,
        expected: str,
        hint: str,
        key: bool = False,
    ) -> Finding:
        """A finding about the value (or with `key` the key) at `path`."""
        mark = self.place(path, key=key)
        return Finding(id_, message, self.file, mark.line, mark.column, dotted(path), value, expected, hint)

    @cached_property
    def lines(self) -> list[str]:
        """The file's lines."""
        return self.text.splitlines()


def read_source(file: str) -> Source:
    """Read a YAML file, or standard input for `-`. Raises `SourceError` when there is no one document to judge."""
    return parse_source(_read(file), file)


def parse_source(text: str, file: str) -> Source:
    """A document from its text. Raises `SourceError` for an empty text and for several documents."""
    source = Source(file, text)
    try:
        nodes = list(_compose(text))
    except MarkedYAMLError as error:
        source.findings.append(_syntax_finding(error, file))
        return source
    except YAMLError as error:
        source.findings.append(
            Finding("NW001", f"not YAML: {error}", file, 1, 1, "", None, "a YAML document", "fix it")
        )
        return source
    if not nodes:
        raise SourceError("empty-file", "the file holds no document", file, "write one: `narwhal schema fleet`")
    if len(nodes) > 1:
        line = nodes[1].start_mark.line + 1
        raise SourceError(
            "many-documents",
            "the file holds more than one YAML document",
            file,
            "put each fleet in a file of its own",
            line,
        )
    _Reader(source).read(nodes[0])
    return source


def _read(file: str) -> str:
    name = "standard input" if file == "-" else file
    try:
        data = sys.stdin.buffer.read(MAX_BYTES + 1) if file == "-" else _read_file(file)
    except FileNotFoundError:
        raise SourceError("missing-file", "no such file", file, "check the path") from None
    except IsADirectoryError:
        raise SourceError("not-a-file", "is a directory without a fleet file", file, "name the fleet file") from None
    except OSError as error:
        raise SourceError(
            "unreadable-file", f"cannot be read: {error.strerror}", file, "check the path and its permissions"
        ) from None
    if len(data) > MAX_BYTES:
        raise SourceError("large-file", f"is larger than {MAX_BYTES} bytes", file, "is it the right file?")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(
            "binary-file", f"not UTF-8 text (byte {error.start})", file, "is it the right file?"
        ) from None
    if "\0" in text:
        raise SourceError("binary-file", f"{name} holds NUL bytes", file, "is it the right file?")
    return text


def _read_file(file: str) -> bytes:
    with FilePath(file).open("rb") as stream:
        return stream.read(MAX_BYTES + 1)


def _compose(text: str) -> Iterator[Node]:
    yaml = YAML(typ="safe", pure=True)  # the round-trip scanner keeps comments too, and takes twice as long
    _, parser = yaml.get_constructor_parser(text)
    composer = yaml.composer
    while composer.check_node():
        node = composer.get_node()
        if node is not None:
            yield node
    parser.dispose()


def _syntax_finding(error: MarkedYAMLError, file: str) -> Finding:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    problem = error.problem or error.context or "unreadable"
    context = f" {error.context}" if error.context and error.context != problem else ""
    return Finding(
        "NW001",
        f"not YAML: {problem}{context}",
        file,
        line,
        column,
        "",
        None,
        "a YAML document",
        "check indentation, colons and quotes on this line and the one before",
    )


class _Reader:
    """Turns a node tree into plain data and marks."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.count = 0
        self.open: list[Node] = []
        """Nodes that are being read, to see an alias that contains itself."""

    def read(self, root: Node) -> None:
        try:
            self.source.data = self._value(root, ())
        except SourceError as error:
            self.source.data = None
            self.source.findings.append(
                Finding(
                    "NW001",
                    error.message,
                    error.file,
                    error.line or 1,
                    1,
                    "",
                    None,
                    "a plain YAML document",
                    error.hint,
                )
            )

    def _value(self, node: Node, path: Path) -> Any:
        self.count += 1
        line = node.start_mark.line + 1
        if self.count > MAX_VALUES or any(node is other for other in self.open):
            raise SourceError(
                "alias", "aliases make the document endless", self.source.file, "write the values out", line
            )
        self.source.values[path] = Mark(line, node.start_mark.column + 1)
        self.open.append(node)
        try:
            if isinstance(node, MappingNode):
                return self._mapping(node, path)
            if isinstance(node, SequenceNode):
                return [self._value(item, (*path, i)) for i, item in enumerate(node.value)]
            return self._scalar(node, path) if isinstance(node, ScalarNode) else None
        finally:
            self.open.pop()

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                self._merge(value_node, path, data)
        own: dict[str, Mark] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                continue
            mark = Mark(key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            key = key_node.value if isinstance(key_node, ScalarNode) else "?"
            if key in own:
                self._duplicate((*path, key), mark, own[key])
                continue
            own[key] = mark
            self.source.keys[(*path, key)] = mark
            data[key] = self._value(value_node, (*path, key))
        return data

    def _merge(self, node: Node, path: Path, data: dict[str, Any]) -> None:
        """Take over the keys of a merged mapping (`<<: *name`); earlier ones win, as YAML says."""
        for source in node.value if isinstance(node, SequenceNode) else [node]:
            if not isinstance(source, MappingNode):
                continue
            for key_node, value_node in source.value:
                if isinstance(key_node, ScalarNode) and key_node.value not in data:
                    key = key_node.value
                    self.source.keys[(*path, key)] = Mark(key_node.start_mark.line + 1, key_node.start_mark.column + 1)
                    data[key] = self._value(value_node, (*path, key))

    def _duplicate(self, path: Path, mark: Mark, first: Mark) -> None:
        self.source.findings.append(
            Finding(
                "NW002",
                f"key {path[-1]!r} stands here a second time; the first is on line {first.line}",
                self.source.file,
                mark.line,
                mark.column,
                dotted(path),
                path[-1],
                "each key once",
                "delete one of the two, or rename it",
            )
        )

    def _scalar(self, node: ScalarNode, path: Path) -> Any:
        construct = _CONSTRUCT.get(str(node.tag))
        if construct is None:
            return str(node.value)
        try:
            return construct(_CONSTRUCTOR, node)
        except (ValueError, ConstructorError):
            return str(node.value)


_CONSTRUCTOR = YAML(typ="safe", pure=True).constructor
