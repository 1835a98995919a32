"""Generating the schemas of what the router writes and answers: `python -m narwhal.router.schemas`.

`journal` and `events` are one line each of the files of those names, `moves` is what `/narwhal/moves` and
`/narwhal/decisions` answer, `reload`, `links` and `changes` what `/narwhal/reload`, `/narwhal/links` and
`/narwhal/changes` do, `order-answer` what every order is answered with, `live` the data of each event of
`/narwhal/events`. `router-state` is written by hand. A test compares the files with what is generated here.
"""

import json
from typing import Any, Literal

import msgspec

from narwhal.control.events import AnyEvent
from narwhal.control.records import Decision
from narwhal.control.snapshot import LinesLost, Snapshot
from narwhal.control.succession import RoleMap
from narwhal.documents import data_path, write_atomically
from narwhal.router.envelope import OrderAnswer
from narwhal.router.live import AnyPart
from narwhal.router.matrix import Changes, Links
from narwhal.router.reading import JournalRows
from narwhal.router.reload import Reload
from narwhal.router.rows import AnyRow
from narwhal.router.saved import Knowledge, SavedState
from narwhal.router.standby import FollowLine


class SettingsLine(msgspec.Struct, frozen=True, tag_field="type", tag="Settings"):
    """What a replay needs first: the sections of the fleet file that control reads."""

    slo: dict[str, Any]
    serving: dict[str, Any]
    controller: dict[str, Any]
    recovery: dict[str, Any]
    kv_lease_s: float
    max_model_len: int
    tenants: list[dict[str, Any]]


class RowsRead(JournalRows, frozen=True, tag=False):
    """What `/narwhal/journal` answers, with the rows' own form."""

    rows: list[AnyRow]


class Moves(msgspec.Struct, frozen=True):
    """Decisions that moved engines, were held, or advised; newest last."""

    apiVersion: Literal["narwhal/v1"]  # noqa: N815
    kind: Literal["Moves"]
    now_t: float
    """Present time on the router's clock, in seconds; `t` of a decision is on the same."""
    moves: list[Decision]


class Decisions(msgspec.Struct, frozen=True):
    """All recorded decisions, or those that were held; newest last."""

    apiVersion: Literal["narwhal/v1"]  # noqa: N815
    kind: Literal["Decisions"]
    now_t: float
    decisions: list[Decision]


TITLES = {
    "journal": "JournalRow",
    "events": "EventLine",
    "moves": "Moves",
    "reload": "Reload",
    "role-map": "RoleMap",
    "follow": "FollowLine",
    "links": "Links",
    "changes": "Changes",
    "order-answer": "OrderAnswer",
    "saved-state": "SavedState",
    "journal-rows": "JournalRows",
    "live": "LivePart",
}


DOCUMENTS: dict[str, Any] = {
    "reload": Reload,
    "links": Links,
    "changes": Changes,
    "order-answer": OrderAnswer,
    "role-map": RoleMap,
    "follow": FollowLine,
    "journal-rows": RowsRead,
    "live": AnyPart,
}


def render(name: str) -> str:
    """The text of a generated schema file."""
    head: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:narwhal:schema:{name}:v1",
        "title": TITLES[name],
    }
    if name == "journal":
        body = _schema(AnyRow)
    elif name == "events":
        body = _schema(AnyEvent)
        for line in (SettingsLine, Snapshot, LinesLost):
            other = _schema(line)
            body["$defs"] |= other["$defs"]
            body["anyOf"].append({"$ref": other["$ref"]})
    elif name == "saved-state":
        body, state = _schema(SavedState), _schema(Knowledge)
        body["$defs"] |= state["$defs"]
        body["$defs"]["SavedState"]["properties"]["state"] = {"$ref": state["$ref"]}
    elif name in DOCUMENTS:
        body = _schema(DOCUMENTS[name])
    else:
        body, decisions = _schema(Moves), _schema(Decisions)
        body = {
            "anyOf": [{"$ref": body["$ref"]}, {"$ref": decisions["$ref"]}],
            "$defs": body["$defs"] | decisions["$defs"],
        }
    return json.dumps(head | body, indent=2, ensure_ascii=False) + "\n"


def _schema(kind: Any) -> dict[str, Any]:
    schema = msgspec.json.schema(kind)
    schema.pop("discriminator", None)
    for definition in schema["$defs"].values():
        if "properties" in definition:
            definition["additionalProperties"] = False
            definition["required"] = sorted(definition["properties"])  # nothing is left out when written
    return schema


def main() -> None:
    """Write the schemas."""
    for name in TITLES:
        path = data_path("schemas") / name / "v1.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, render(name))


if __name__ == "__main__":
    main()
