"""The configuration that is in effect: every value, with where it comes from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from narwhal.fleet.check import Checked
from narwhal.fleet.expanded import Expanded
from narwhal.fleet.finding import Path, dotted
from narwhal.fleet.model import Fleet


@dataclass(frozen=True, slots=True)
class Value:
    """One value of the effective configuration."""

    field: str
    value: object
    origin: str
    """`FILE:LINE`, or `default`."""


def effective(checked: Checked) -> list[Value]:
    """Every value of a checked fleet file in the order of the schema. The file must have no finding."""
    assert checked.fleet is not None
    return list(_values(checked, checked.fleet, ()))


def _values(checked: Checked, part: Any, path: Path) -> Iterator[Value]:
    if isinstance(part, BaseModel):
        for name, field in type(part).model_fields.items():
            yield from _values(checked, getattr(part, name), (*path, field.alias or name))
    elif isinstance(part, dict) and part:
        for key, item in part.items():
            yield from _values(checked, item, (*path, key))
    elif isinstance(part, list | tuple) and part:
        for i, item in enumerate(part):
            yield from _values(checked, item, (*path, i))
    else:
        mark = checked.source.values.get(path)
        yield Value(dotted(path), part, f"{checked.source.file}:{mark.line}" if mark else "default")


def effective_text(values: list[Value]) -> str:
    """The values as a table: field, value, origin."""
    rows = [(v.field, _shown(v.value), v.origin) for v in values]
    widths = [min(max(len(row[i]) for row in rows), 56) for i in (0, 1)]
    return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows)


def engines_text(expanded: Expanded) -> str:
    """Engines and routers as tables: what the fleet file expands to."""
    engines = [("engine", "role", "pin", "url", "side channel", "GPUs", "shares")]
    for e in expanded.engines:
        gpus = ",".join(map(str, e.gpus)) or "-"
        side = f"{e.address}:{e.side_channel_port}"
        engines.append((e.id, e.role, e.pin or "-", e.url, side, gpus, e.shared_device or "-"))
    routers = [("router", "clients", "admin", "")]
    for r in expanded.routers:
        what = "standby" if r.standby else "primary"
        routers.append((r.host, f"{r.bind}:{r.port}", f"{r.admin_bind}:{r.admin_port}", what))
    return _table(engines) + "\n\n" + _table(routers)


def engines_data(expanded: Expanded) -> dict[str, Any]:
    """Engines and routers as data."""
    return {
        "engines": [
            {name: getattr(e, name) for name in e.__slots__} | {"args": dict(e.args)} for e in expanded.engines
        ],
        "routers": [{name: getattr(r, name) for name in r.__slots__} for r in expanded.routers],
    }


def fleet_line(fleet: Fleet, expanded: Expanded) -> str:
    """A fleet in one line."""
    split = f"{fleet.split.prefill} prefill + {fleet.split.decode} decode"
    return f"fleet {fleet.metadata.name}: {fleet.model.name} on {len(expanded.engines)} engines ({split})"


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
