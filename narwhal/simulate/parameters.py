"""Parameters of the controller that `--tune` searches: where they stand, and which values they may take.

Kind, limits, unit and meaning of a parameter come from the models of the fleet file; a candidate must also pass the
rules that `narwhal validate` knows.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from narwhal.fleet import check_section
from narwhal.fleet.model import Controller

Value = bool | int | float | str
WIDE = 8.0
"""A range whose ends are this many times apart is searched in equal ratios, a narrower one in equal steps."""
DIGITS = 3
"""Significant digits of a drawn number: more would promise more than a search can know."""
UNITS = ("s", "tokens", "bytes")
"""Units that the name of a parameter may end in."""
TRIES = 200
"""Draws without a valid candidate after which ranges are called impossible."""


class TuneError(ValueError):
    """A search that cannot be done; the message says what to write."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter and the values that are searched."""

    path: tuple[str, ...]
    """Where it stands below `controller`."""
    default: Value
    """What the fleet file says, else the default of its schema."""
    choices: tuple[Value, ...] = ()
    """The values, when they are listed; else `low` to `high`."""
    low: float = 0.0
    high: float = 0.0
    about: str = ""

    @property
    def name(self) -> str:
        """The parameter as one writes it."""
        return ".".join(("controller", *self.path))

    @property
    def unit(self) -> str:
        """Its unit; empty where it has none."""
        return next((unit for unit in UNITS if self.path[-1].endswith(f"_{unit}")), "")

    @property
    def searched(self) -> str:
        """The values that are searched, in words."""
        return ", ".join(map(written, self.choices)) if self.choices else f"{self.low:g} to {self.high:g}"

    def draw(self, rng: random.Random) -> Value:
        """One of its values, by chance."""
        if self.choices:
            return rng.choice(self.choices)
        if isinstance(self.default, int):
            return rng.randint(int(self.low), int(self.high))
        if self.low > 0 and self.high / self.low >= WIDE:
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = rng.uniform(self.low, self.high)
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)


def written(value: Value) -> str:
    """A value as a fleet file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def parse_parameter(text: str, controller: Controller) -> Parameter:
    """The parameter of `controller.thresholds.cooldown_s=5..60`; a range or a list of values. Raises `TuneError`.

    Without values: both of a switch, all of a list of words, a quarter to four times the present number.
    """
    name, _, values = text.partition("=")
    head, *rest = name.strip().split(".")
    path = tuple(rest)
    field, default = _find(controller, path) if head == "controller" else (None, None)
    if field is None or not isinstance(default, bool | int | float | str):
        names = ", ".join(_names(controller, ("controller",)))
        raise TuneError(f"{name!r} is no parameter of the controller; there are {names}")
    about = field.description or ""
    if ".." in values:
        low, high = _range(text, values, default)
        parameter = Parameter(path, default, (), low, high, about)
    elif values:
        parameter = Parameter(path, default, tuple(_value(text, part.strip(), default) for part in values.split(",")))
    else:
        parameter = _natural(path, default, field, controller)
    for value in parameter.choices or (_like(default, parameter.low), _like(default, parameter.high)):
        with_values(controller, {path: value}, text)
    return parameter


def _find(controller: Controller, path: Sequence[str]) -> tuple[FieldInfo | None, Any]:
    """The field of a path, and what stands there now."""
    here: Any = controller
    field: FieldInfo | None = None
    for part in path:
        field = type(here).model_fields.get(part) if isinstance(here, BaseModel) else None
        if field is None:
            return None, None
        here = getattr(here, part)
    return field, here


def _names(model: BaseModel, path: tuple[str, ...]) -> list[str]:
    """All parameters below a path."""
    names: list[str] = []
    for name in type(model).model_fields:
        below = getattr(model, name)
        names += _names(below, (*path, name)) if isinstance(below, BaseModel) else [".".join((*path, name))]
    return names


def _range(text: str, values: str, default: Value) -> tuple[float, float]:
    low_text, _, high_text = values.partition("..")
    low, high = _value(text, low_text.strip(), default), _value(text, high_text.strip(), default)
    if isinstance(low, str | bool) or isinstance(high, str | bool):
        raise TuneError(f"{text!r}: this parameter takes a list of values, such as {text.partition('=')[0]}=A,B")
    if not low < high:
        raise TuneError(f"{text!r}: the range ends at {high:g}, which is not above {low:g}")
    return low, high


def _value(text: str, part: str, default: Value) -> Value:
    """What `part` means, of the kind that stands there now."""
    if isinstance(default, str):
        return part
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[part.lower()]
        value = int(part) if isinstance(default, int) else float(part)
    except (KeyError, ValueError) as error:
        kind = {bool: "true or false", int: "a whole number"}.get(type(default), "a number")
        raise TuneError(f"{text!r}: {part!r} is not {kind}; write a range such as 5..60 or a list") from error
    if not math.isfinite(value):
        raise TuneError(f"{text!r}: {part!r} is not a finite number")
    return value


def _natural(path: tuple[str, ...], default: Value, field: FieldInfo, controller: Controller) -> Parameter:
    """The values to search when none are given."""
    about, name = field.description or "", ".".join(("controller", *path))
    if isinstance(default, bool):
        return Parameter(path, default, (False, True), about=about)
    if isinstance(default, str):
        words = get_args(field.annotation) if get_origin(field.annotation) is Literal else (default,)
        return Parameter(path, default, words, about=about)
    if not default:
        raise TuneError(f"{name!r} is 0 now, which says nothing of its range; write one, such as {name}=1..10")
    low, high = default / 4, default * 4
    for limit in field.metadata:
        low = max(low, getattr(limit, "ge", low))
        high = min(high, getattr(limit, "le", high))
    if isinstance(default, int):
        low = math.ceil(low)
    return Parameter(path, default, (), low, high, about)


def _like(default: Value, value: float) -> Value:
    return int(value) if isinstance(default, int) else value


def with_values(controller: Controller, values: Mapping[tuple[str, ...], Value], text: str = "") -> Controller:
    """The controller with other values. Raises `TuneError` for one that its schema does not take."""
    data = controller.model_dump(mode="json")
    for path, value in values.items():
        section = data
        for part in path[:-1]:
            section = section[part]
        section[path[-1]] = value
    try:
        return Controller.model_validate(data)
    except ValidationError as error:
        detail = error.errors()[0]
        where = ".".join(map(str, ("controller", *detail["loc"])))
        raise TuneError(f"{text + ': ' if text else ''}{where} is {detail['input']}: {detail['msg']}") from error


def draw_valid(parameters: Sequence[Parameter], controller: Controller, rng: random.Random) -> dict[str, Value]:
    """Values for all parameters that the rules of the fleet file allow together, by name. Raises `TuneError`."""
    for _ in range(TRIES):
        values = {parameter.path: parameter.draw(rng) for parameter in parameters}
        found = broken_rules(with_values(controller, values))
        if not found:
            return {parameter.name: values[parameter.path] for parameter in parameters}
    raise TuneError(f"no values within the ranges pass the rules of the fleet file: {found[0]}")


def broken_rules(controller: Controller) -> list[str]:
    """Rules that a controller section breaks, in words."""
    findings = check_section({"controller": controller.model_dump(mode="json")})
    return [f"{f.id}: {f.message}" for f in findings if f.field.startswith("controller")]


def fragment(values: Mapping[str, Value]) -> str:
    """Values by name as the part of a fleet file that says them."""
    lines: list[str] = []
    stack: tuple[str, ...] = ()
    for name, value in sorted(values.items()):
        *sections, key = name.split(".")
        same = 0
        while same < min(len(stack), len(sections)) and stack[same] == sections[same]:
            same += 1
        lines += [f"{'  ' * depth}{sections[depth]}:" for depth in range(same, len(sections))]
        lines.append(f"{'  ' * len(sections)}{key}: {written(value)}")
        stack = tuple(sections)
    return "\n".join(lines)
