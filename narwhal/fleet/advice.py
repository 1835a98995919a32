"""What to type instead of a value that the schema does not take."""

from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from narwhal.fleet.draft import model_at, models_at
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
    r"^((turning|sin|bursty):(code|conv|reas)(,(code|conv|reas))+:[0-9]+([.][0-9]+)?"
    r"|steady:(code|conv|reas)(,(code|conv|reas))*)$": (
        "a mix: turning, sin, bursty or steady; classes of code, conv, reas; and but for steady the seconds of a phase",
        "turning:code,reas:60",
    ),
    r"^3\.1[1-9]$": ("a version of Python, 3.11 or newer", "3.11"),
    r"^/[A-Za-z0-9/_.-]*$": ("a path: a slash, then letters, digits, and / _ . -", "/narwhal"),
}
"""Patterns of the schema: what they allow, in words, and an example."""


def advise(path: Path, expected: str, root: type[BaseModel]) -> str:
    """What to write at `path`: the kind of value, an example where one is known, and what the key means."""
    if expected == "a mapping":
        return _below(path, root)
    if expected == "a list":
        return f"write the items below `{dotted(path)}:`, each on a line of its own that begins with `- `"
    example, about = _example(path, root), doc(path, root)
    such_as = f", such as `{path[-1]}: {example}`" if example else ""
    return f"write {expected}{such_as}" + (f". {about}" if about else "")


def advise_pattern(path: Path, pattern: str, root: type[BaseModel], *, key: bool) -> str:
    """What text to write at `path`, or as its last key, by an example that matches `pattern`."""
    example = PATTERNS[pattern][1]
    if key:
        return f"write the key as in `{example}: …`"
    if isinstance(path[-1], int):
        return f"write it as in `{example}`"
    return f"write it as in `{path[-1]}: {_example(path, root) or example}`"


def doc(path: Path, root: type[BaseModel]) -> str:
    """What the model says about a key; of the list or mapping that holds it, for an item; empty when nothing does."""
    while path:
        field = field_at(path, root)
        if field is not None and field.description:
            return field.description.split("\n\n")[0]
        path = path[:-1]
    return ""


def sample(path: Path, root: type[BaseModel]) -> str:
    """The least that a missing key needs, as YAML: its example, or its own required keys; `…` when nothing is known."""
    field = field_at(path, root)
    if field is not None and field.examples:
        return as_yaml(field.examples[0])
    if model_at(path, root) is not None:
        return _flow(path, root)
    return f"[{_flow((*path, 0), root)}]" if model_at((*path, 0), root) else "…"


def _flow(path: Path, root: type[BaseModel]) -> str:
    model = model_at(path, root)
    needed = [f.alias or n for n, f in model.model_fields.items() if f.is_required()] if model else []
    return "{" + ", ".join(f"{key}: {sample((*path, key), root)}" for key in needed) + "}"


def as_yaml(value: object) -> str:
    """A scalar, or a short list or mapping, the way a fleet file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def keys_at(path: Path, root: type[BaseModel]) -> list[str]:
    """The keys that the mapping at `path` may have; of several kinds of mapping, those of all."""
    fields = (item for model in models_at(path, root) for item in model.model_fields.items())
    return list(dict.fromkeys(field.alias or name for name, field in fields))


def _below(path: Path, root: type[BaseModel]) -> str:
    keys = keys_at(path, root)
    return f"write keys with values below `{dotted(path)}`, indented" + (f": {one_of(keys)}" if keys else "")


def field_at(path: Path, root: type[BaseModel]) -> FieldInfo | None:
    """The field of the model that stands at `path`; of several kinds of mapping, the first that has it."""
    found: dict[Any, FieldInfo] = {}
    for model in models_at(path[:-1], root):
        found = {f.alias or n: f for n, f in model.model_fields.items()} | found
    return found.get(path[-1])


def _example(path: Path, root: type[BaseModel]) -> str | None:
    """The first example of a key, else its default when that is a plain value."""
    field = field_at(path, root)
    if field is None:
        return None
    value = field.examples[0] if field.examples else field.default
    return as_yaml(value) if isinstance(value, str | int | float) else None
