"""What the schema finds wrong with a document: keys, types and values one by one, without their meaning together."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from narwhal.documents import API_VERSION, Document
from narwhal.fleet.advice import PATTERNS, advise, advise_pattern, as_yaml, doc, field_at, keys_at, sample
from narwhal.fleet.draft import model_path, models_at, tags_of
from narwhal.fleet.finding import Finding, Path, dotted
from narwhal.fleet.source import Source
from narwhal.fleet.suggest import did_you_mean, one_of

D = TypeVar("D", bound=Document)

_PLACE = "{env: NAME} or {file: /path}"
_TYPES = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "finite_number": "a finite number",
}
_LIMITS = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "string_too_short": "text of {min_length} or more characters",
    "too_short": "a list of {min_length} or more",
    "too_long": "a list of at most {max_length}",
}


@dataclass(frozen=True, slots=True)
class Shape(Generic[D]):
    """What the schema says about a document."""

    document: D | None
    """The typed document, when the schema has nothing against it."""
    findings: list[Finding]
    broken: frozenset[Path]
    """Paths whose value cannot be used."""


def check_shape(source: Source, root: type[D]) -> Shape[D]:
    """Hold a document against its model; every deviation is a finding."""
    kind = kind_of(root)
    if not isinstance(source.data, Mapping):
        text = "the document is not a mapping"
        finding = source.finding("NW006", (), text, expected="keys with values", hint=f"begin with `kind: {kind}`")
        return Shape(None, [finding], frozenset())
    findings = list(_version(source, kind))
    data = {key: value for key, value in source.data.items() if key not in ("apiVersion", "kind")}
    try:
        document = root.model_validate({**data, "kind": kind}, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        details = _by_path(error, root)
        findings += [_finding(source, path, details[path], root) for path in details]
        return Shape(None, findings, frozenset(details))
    return Shape(None if findings else document, findings, frozenset())


def kind_of(root: type[Document]) -> str:
    """The `kind` of a document's model."""
    return str(get_args(root.model_fields["kind"].annotation)[0])


def _version(source: Source, kind: str) -> Iterator[Finding]:
    for key, expected in (("apiVersion", API_VERSION), ("kind", kind)):
        value = source.data.get(key)
        if value == expected:
            continue
        hint = f"write `{key}: {expected}`"
        text = f"{key} is {value!r}" if key in source.data else f"{key} is missing"
        yield source.finding("NW003", (key,), text, value=value, expected=expected, hint=hint)


def _by_path(error: ValidationError, root: type[Document]) -> dict[Path, ErrorDetails]:
    """One error for each place: a union reports one for each member, and a secret some below it."""
    found: dict[Path, ErrorDetails] = {}
    for detail in error.errors(include_url=False):
        path = model_path(detail["loc"], root)
        if any("SecretFrom" in str(part) for part in detail["loc"]):
            path = _secret_path(detail, root)
            detail = {**detail, "type": "secret"}
        elif detail["loc"][-1] in ("str", "int", "float", "bool"):
            detail = {**detail, "type": "scalar"}
        found.setdefault(path, detail)
    return found


def _secret_path(detail: ErrorDetails, root: type[Document]) -> Path:
    loc = detail["loc"]
    member = next(i for i, part in enumerate(loc) if str(part).startswith("SecretFrom"))
    return model_path(loc[:member], root)


def _finding(source: Source, path: Path, detail: ErrorDetails, root: type[Document]) -> Finding:
    kind = detail["type"]
    value = _value_at(source.data, path)
    if kind == "secret":
        return _secret(source, path, value)
    if kind == "missing":
        return _missing(source, path, root)
    if kind == "extra_forbidden":
        return _unknown_key(source, path, root)
    if kind in ("literal_error", "union_tag_invalid", "union_tag_not_found"):
        return _not_listed(source, path, detail, root)
    if kind in _LIMITS or kind == "string_pattern_mismatch":
        return _not_allowed(source, path, detail, root)
    expected = _TYPES.get(kind, "text, a number, true or false")
    text = f"{dotted(path)} is {_shown(value)}, which is not {expected}"
    hint = _type_hint(value, path, expected, root)
    return source.finding("NW006", path, text, value=value, expected=expected, hint=hint)


def _not_allowed(source: Source, path: Path, detail: ErrorDetails, root: type[Document]) -> Finding:
    value, kind = _value_at(source.data, path), detail["type"]
    key = detail["loc"][-1] == "[key]"
    context: dict[str, Any] = detail.get("ctx", {})
    if kind == "string_pattern_mismatch":
        expected = PATTERNS[context["pattern"]][0]
        hint = advise_pattern(path, context["pattern"], root, key=key)
    else:
        expected = _LIMITS[kind].format(**{name: as_yaml(limit) for name, limit in context.items()})
        wanted = f"a number of {expected}" if kind.startswith(("greater", "less")) else expected
        hint = advise(path[:-1] if key else path, "a list" if kind == "too_short" else wanted, root)
    text = f"{dotted(path)} is {_shown(path[-1] if key else value)}, which is not {expected}"
    return source.finding("NW007", path, text, value=value, expected=expected, hint=hint, key=key)


def _type_hint(value: object, path: Path, expected: str, root: type[Document]) -> str:
    if isinstance(value, str) and expected in ("a number", "a whole number"):
        try:
            float(value)
        except ValueError:
            return advise(path, f"{expected} without a unit", root)
        return f"take the quotes away: `{path[-1]}: {value}`"
    if expected == "text" and isinstance(value, int | float):
        return f'put it in quotes: "{as_yaml(value)}"'
    return advise(path, expected, root)


def _secret(source: Source, path: Path, value: object) -> Finding:
    if isinstance(value, str):
        text = f"{dotted(path)} holds a secret in plain text"
        hint = "move it to a file or an environment variable, and replace it: it has been written down here"
        return source.finding("NW008", path, text, value="***", expected=_PLACE, hint=hint)
    text = f"{dotted(path)} does not say where the secret is"
    return source.finding("NW006", path, text, value="***", expected=_PLACE, hint=f"write {_PLACE}")


def _missing(source: Source, path: Path, root: type[Document]) -> Finding:
    where = dotted(path[:-1]) or "the document"
    field = field_at(path, root)
    about = f": {field.description}" if field and field.description else ""
    text = f"{path[-1]} is missing from {where}"
    return source.finding(
        "NW005", path, text, expected=f"{path[-1]}{about}", hint=f"add `{path[-1]}: {sample(path, root)}`"
    )


def _unknown_key(source: Source, path: Path, root: type[Document]) -> Finding:
    key = str(path[-1])
    siblings = keys_at(path[:-1], root)
    near = did_you_mean(key, siblings)
    homes = [home for home in _homes(root).get(key, ()) if home != dotted(path[:-1])]
    if homes and len(homes) < 4:
        hint = f"`{key}` belongs under {' or '.join(f'`{home}`' if home else 'the top level' for home in homes)}"
    elif near:
        hint = f"did you mean `{near}`?"
    else:
        hint = f"delete it, or see `narwhal schema {kind_of(root).lower()}`"
    where = dotted(path[:-1]) or f"a {kind_of(root).lower()} file"
    text = f"{where} has no key {key!r}"
    return source.finding("NW004", path, text, value=key, expected=f"one of {one_of(siblings)}", hint=hint, key=True)


def _not_listed(source: Source, path: Path, detail: ErrorDetails, root: type[Document]) -> Finding:
    context: dict[str, Any] = detail.get("ctx", {})
    if detail["type"].startswith("union_tag"):
        path = (*path, str(context.get("discriminator", "kind")).strip("'"))
    allowed = str(context.get("expected_tags") or context.get("expected") or "")
    words = [word.strip(" '") for word in allowed.replace(" or ", ", ").split(",")]
    value = _value_at(source.data, path)
    if value is None and detail["type"].startswith("union_tag"):
        return _missing_tag(source, path, root)
    near = did_you_mean(value, words)
    typed = f"write one of {one_of(words)}, such as `{path[-1]}: {words[0]}`. {doc(path, root)}"
    hint = f"did you mean `{near}`?" if near else typed
    text = f"{dotted(path)} is {_shown(value)}"
    return source.finding("NW007", path, text, value=value, expected=f"one of {one_of(words)}", hint=hint)


def _missing_tag(source: Source, path: Path, root: type[Document]) -> Finding:
    words = one_of([str(tag) for model in models_at(path[:-1], root) for tag in tags_of(model)])
    text = f"{path[-1]} is missing from {dotted(path[:-1])}"
    return source.finding("NW005", path, text, expected=words, hint=f"add `{path[-1]}:` with one of {words}")


def _value_at(data: Any, path: Path) -> Any:
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _shown(value: object) -> str:
    text = "empty" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


@cache
def _homes(root: type[Document]) -> dict[str, list[str]]:
    """Where each key of the schema may stand: key -> paths of the mappings that have it."""
    homes: dict[str, list[str]] = {}
    waiting: list[Path] = [()]
    while waiting:
        path = waiting.pop(0)
        for key in keys_at(path, root):
            homes.setdefault(key, []).append(dotted(path))
            waiting.append((*path, key))
    return homes
