"""Writing YAML that every reader of YAML 1.1 and 1.2 understands alike, in one form, whatever the data."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./@+-]*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Words that one of the two versions takes for something else than text."""

Data: TypeAlias = Mapping[str, "Data"] | Sequence["Data"] | str | int | float | bool | None


def yaml_text(data: Data) -> str:
    """A document of mappings, lists and scalars; keys in the order given, text quoted wherever it could be misread."""
    return "\n".join(["---", *_lines(data, "")]) + "\n"


def _lines(data: Data, indent: str) -> Iterator[str]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _entry(f"{indent}{scalar(key)}:", value, indent)
    else:
        assert isinstance(data, Sequence)
        for item in data:
            yield from _item(item, indent)


def _entry(head: str, value: Data, indent: str) -> Iterator[str]:
    if _is_nested(value):
        yield head
        yield from _lines(value, indent + "  ")
    else:
        yield f"{head} {scalar(value)}"


def _item(value: Data, indent: str) -> Iterator[str]:
    """A list's item; a mapping begins on the line of its dash."""
    if not _is_nested(value):
        yield f"{indent}- {scalar(value)}"
        return
    first, *rest = _lines(value, indent + "  ")
    yield f"{indent}- {first.lstrip()}"
    yield from rest


def _is_nested(value: Data) -> bool:
    return isinstance(value, Mapping | list | tuple) and bool(value)


def scalar(value: Data) -> str:
    """A scalar in one line; text is quoted wherever it could be misread."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)
