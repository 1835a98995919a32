"""A fleet file that may be partly broken, read as if it were a `Fleet`.

Rules are written against the typed model. A `Draft` stands in for it: attributes give what the file says or the
default, and raise `Unknown` where the file is missing something or the schema has already found it wrong. So one
broken section never hides findings in another.
"""

import types
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, overload

from pydantic import BaseModel

from narwhal.fleet.finding import Path
from narwhal.fleet.model import Benchmark, Fleet

A = TypeVar("A")
T = TypeVar("T")


class Unknown(Exception):  # noqa: N818 - not an error: the rule that meets it has nothing to say
    """Raised where a draft cannot say what its value is."""


class Draft:
    """One mapping of a draft, read through its model class."""

    def __init__(self, model: type[BaseModel], raw: Any, path: Path, broken: Collection[Path]) -> None:
        self._model = model
        self._raw = raw if isinstance(raw, Mapping) and path not in broken else None
        self._path = path
        self._broken = broken

    def __getattr__(self, name: str) -> Any:
        field = self._model.model_fields.get(name)
        if field is None:
            raise AttributeError(name)
        path = (*self._path, field.alias or name)
        if self._raw is None or path in self._broken:
            raise Unknown(path)
        if path[-1] not in self._raw:
            if field.is_required():
                raise Unknown(path)
            value = field.get_default(call_default_factory=True)
        else:
            value = _wrap(field.annotation, self._raw[path[-1]], path, self._broken)
        self.__dict__[name] = value  # rules read the same few values again and again
        return value


def draft_fleet(data: Any, broken: Collection[Path]) -> Fleet:
    """The draft of a fleet file; `broken` holds the paths that the schema found wrong."""
    return cast(Fleet, Draft(Fleet, data, (), broken))


def draft_benchmark(data: Any, broken: Collection[Path]) -> Benchmark:
    """The same of a benchmark file."""
    return cast(Benchmark, Draft(Benchmark, data, (), broken))


def path_of(part: object) -> Path:
    """Where a part of a draft stands in the file. Raises `Unknown` for a default, which stands nowhere."""
    if not isinstance(part, Draft):
        raise Unknown(part)
    return part._path


def written(part: object, key: str) -> bool:
    """Whether the file itself says `key` in this mapping."""
    return isinstance(part, Draft) and part._raw is not None and key in part._raw


@overload
def known(read: Callable[[], T]) -> T | None: ...
@overload
def known(read: Callable[[A], T], part: A, /) -> T | None: ...
def known(read: Callable[..., T], *part: Any) -> T | None:
    """What `read` gives of `part`, or None when something it needs is unknown."""
    try:
        return read(*part)
    except Unknown:
        return None


def model_path(loc: tuple[int | str, ...], root: type[BaseModel]) -> Path:
    """The path in the file of a place that pydantic names: without the names of union members that it inserts."""
    return tuple(_steps(root, list(loc)))


def model_at(path: Path, root: type[BaseModel]) -> type[BaseModel] | None:
    """The model class of the mapping at `path` of a document; None where there is none, or one of several."""
    models = models_at(path, root)
    return models[0] if len(models) == 1 else None


def models_at(path: Path, root: type[BaseModel]) -> list[type[BaseModel]]:
    """The model classes that the mapping at `path` of a document may have."""
    annotation: Any = root
    for part in path:
        members = _models(annotation)
        fields = {f.alias or n: f.annotation for m in members for n, f in m.model_fields.items()}
        annotation = fields.get(str(part)) if members else _item(annotation)
    return _models(annotation)


def _steps(annotation: Any, loc: list[int | str]) -> Iterator[int | str]:
    while loc:
        annotation = _plain(annotation)
        members = [m for m in get_args(annotation) if m is not type(None)] if _is_union(annotation) else []
        if len(members) > 1:
            tag = loc.pop(0)
            annotation = next((m for m in members if _answers_to(m, tag)), None)
            continue
        part = loc.pop(0)
        if part != "[key]":
            yield part
        models = _models(annotation)
        if models:
            fields = {f.alias or n: f.annotation for n, f in models[0].model_fields.items()}
            annotation = fields.get(str(part))
        else:
            annotation = _item(members[0] if members else annotation)


def _answers_to(member: Any, tag: int | str) -> bool:
    if isinstance(member, type) and issubclass(member, BaseModel):
        return tag == member.__name__ or tag in tags_of(member)
    return False


def tags_of(model: type[BaseModel]) -> tuple[Any, ...]:
    """Values of the literal that tells this member of a union from the others."""
    for name in ("kind", "backend"):
        field = model.model_fields.get(name)
        if field is not None and get_origin(field.annotation) is Literal:
            return get_args(field.annotation)
    return ()


def _wrap(annotation: Any, raw: Any, path: Path, broken: Collection[Path]) -> Any:
    annotation = _plain(annotation)
    if raw is None:
        return None
    models = _models(annotation)
    if models:
        return Draft(_choose(models, raw, path), raw, path, broken)
    if isinstance(raw, list):
        if any((*path, i) in broken for i in range(len(raw))) and not _models(_item(annotation)):
            raise Unknown(path)
        return [_wrap(_item(annotation), item, (*path, i), broken) for i, item in enumerate(raw)]
    if isinstance(raw, Mapping):
        item = _item(annotation)
        return {k: _wrap(item, v, (*path, k), broken) for k, v in raw.items() if (*path, k) not in broken}
    return raw


def _choose(models: list[type[BaseModel]], raw: Any, path: Path) -> type[BaseModel]:
    if len(models) == 1:
        return models[0]
    if isinstance(raw, Mapping):
        for model in models:
            tags = tags_of(model)
            if any(raw.get(name) in tags for name in ("kind", "backend")):
                return model
            if not tags and set(raw) <= {f.alias or n for n, f in model.model_fields.items()}:
                return model
    raise Unknown(path)


def _plain(annotation: Any) -> Any:
    """An annotation without `Annotated` and, where only that is left, without `None`."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if _is_union(annotation):
        members = [m for m in get_args(annotation) if m is not type(None)]
        if len(members) == 1:
            return _plain(members[0])
    return annotation


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The model classes that an annotation admits."""
    annotation = _plain(annotation)
    members = get_args(annotation) if _is_union(annotation) else (annotation,)
    return [m for m in map(_plain, members) if isinstance(m, type) and issubclass(m, BaseModel)]


def _item(annotation: Any) -> Any:
    """What a list or mapping holds."""
    arguments = get_args(_plain(annotation))
    return arguments[-1] if arguments else None
