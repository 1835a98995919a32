"""What to type instead of a value that the schema does not take."""

from typing import Any

from pydantic.fields import FieldInfo

from narwhal.fleet.draft import model_at
from narwhal.fleet.finding import Path, dotted
from narwhal.fleet.suggest import one_of

PATTERNS = {
    r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$": (
        "a name: 1 to 63 lower case letters, digits and hyphens, with no hyphen first or last",
        "gpu-1",
    ),
    r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/[0-9]{1,3}$": (
        "an engine's id: the name of its host, a slash and its number there",
        "gpu-1/0",
    ),
    r"^sha256:[0-9a-f]{64}$": ("a digest: sha256: and 64 digits 0 to 9 and a to f", f"sha256:{'0f' * 32}"),
    r"^.+@sha256:[0-9a-f]{64}$": (
        "an image with its digest: its name, @sha256: and 64 digits 0 to 9 and a to f",
        f"registry.example.org/vllm@sha256:{'0f' * 32}",
    ),
    r"^/[A-Za-z0-9/_.-]*$": ("a path: a slash, then letters, digits, and / _ . -", "/narwhal"),
}
"""Patterns of the schema: what they allow, in words, and an example."""


def advise(path: Path, expected: str) -> str:
    """What to write at `path`: the kind of value, an example where one is known, and what the key means."""
    if expected == "a mapping":
        return _below(path)
    if expected == "a list":
        return f"write the items below `{dotted(path)}:`, each on a line of its own that begins with `- `"
    example, about = _example(path), doc(path)
    such_as = f", such as `{path[-1]}: {example}`" if example else ""
    return f"write {expected}{such_as}" + (f". {about}" if about else "")


def advise_pattern(path: Path, pattern: str, *, key: bool) -> str:
    """What text to write at `path`, or as its last key, by an example that matches `pattern`."""
    example = PATTERNS[pattern][1]
    if key:
        return f"write the key as in `{example}: …`"
    if isinstance(path[-1], int):
        return f"write it as in `{example}`"
    return f"write it as in `{path[-1]}: {_example(path) or example}`"


def doc(path: Path) -> str:
    """What the model says about a key; of the list or mapping that holds it, for an item; empty when nothing does."""
    while path:
        field = _field(path)
        if field is not None and field.description:
            return field.description.split("\n\n")[0]
        path = path[:-1]
    return ""


def sample(path: Path) -> str:
    """The least that a missing key needs, as YAML: its example, or its own required keys; `…` when nothing is known."""
    field = _field(path)
    if field is not None and field.examples:
        return as_yaml(field.examples[0])
    if model_at(path) is not None:
        return _flow(path)
    return f"[{_flow((*path, 0))}]" if model_at((*path, 0)) else "…"


def _flow(path: Path) -> str:
    model = model_at(path)
    needed = [f.alias or n for n, f in model.model_fields.items() if f.is_required()] if model else []
    return "{" + ", ".join(f"{key}: {sample((*path, key))}" for key in needed) + "}"


def as_yaml(value: object) -> str:
    """A scalar, or a short list or mapping, the way a fleet file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def keys_at(path: Path) -> list[str]:
    """The keys that the mapping at `path` may have; none where it may be one of several."""
    model = model_at(path)
    return [field.alias or name for name, field in model.model_fields.items()] if model else []


def _below(path: Path) -> str:
    keys = keys_at(path)
    return f"write keys with values below `{dotted(path)}`, indented" + (f": {one_of(keys)}" if keys else "")


def _field(path: Path) -> FieldInfo | None:
    model = model_at(path[:-1])
    found: dict[Any, FieldInfo] = {f.alias or n: f for n, f in model.model_fields.items()} if model else {}
    return found.get(path[-1])


def _example(path: Path) -> str | None:
    """The first example of a key, else its default when that is a plain value."""
    field = _field(path)
    if field is None:
        return None
    value = field.examples[0] if field.examples else field.default
    return as_yaml(value) if isinstance(value, str | int | float) else None
