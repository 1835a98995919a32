"""The frames between control and relays: whatever is put in comes out, however the bytes are cut."""

import asyncio
import itertools
import socket
import typing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.control import Settings
from narwhal.control import commands as c
from narwhal.control import events as e
from narwhal.fleet import check_text, expand, load_profile
from narwhal.router.journal import Journal
from narwhal.router.metrics import Metrics
from narwhal.router.process import Part
from narwhal.router.workers import wire
from narwhal.router.workers.hub import Hub
from narwhal.router.workers.relay import Relay
from tests.fleet.fleets import BASE

TIMES = st.floats(allow_nan=False)
TEXT = st.text(max_size=20)
NUMBERS = st.integers(0, 2**62)
VALUES: dict[object, st.SearchStrategy[object]] = {
    float: TIMES,
    int: NUMBERS,
    str: TEXT,
    bool: st.booleans(),
    bytes: st.binary(max_size=20),
    tuple[int, ...]: st.lists(NUMBERS, max_size=4).map(tuple),
    list[int]: st.lists(NUMBERS, max_size=4),
    list[str]: st.lists(TEXT, max_size=4),
    dict[str, int]: st.dictionaries(TEXT, NUMBERS, max_size=4),
}


def values(kind: object) -> st.SearchStrategy[object]:
    """Any value of a field's type."""
    if kind in VALUES:
        return VALUES[kind]
    if typing.get_origin(kind) is typing.Literal:
        return st.sampled_from(typing.get_args(kind))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return structs(kind)
    return st.one_of([st.none() if part is type(None) else values(part) for part in typing.get_args(kind)])


def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[object]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{field.name: values(hints[field.name]) for field in msgspec.structs.fields(kind)})


def batches(union: object) -> st.SearchStrategy[list[object]]:
    return st.lists(st.one_of([structs(kind) for kind in typing.get_args(union)]), max_size=5)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(ends)]


PLACES = st.lists(st.integers(0, 1 << 20), max_size=6)


@given(st.lists(batches(wire.ToRelay), max_size=3), PLACES)
def test_what_control_says_arrives_as_it_was_said(sent: list[list[object]], places: list[int]) -> None:
    frames = wire.Frames(wire.read_to_relay)
    data = b"".join(map(wire.frame, sent))
    assert [batch for piece in cut(data, places) for batch in frames.feed(piece)] == sent


@given(st.lists(batches(wire.FromRelay), max_size=3), NUMBERS, PLACES)
def test_what_a_relay_says_arrives_as_it_was_said(sent: list[list[object]], seen: int, places: list[int]) -> None:
    frames = wire.Frames(wire.read_from_relay)
    said = [[(seen, message) for message in batch] for batch in sent]
    data = b"".join(map(wire.frame, said))
    assert [batch for piece in cut(data, places) for batch in frames.feed(piece)] == said


@pytest.mark.parametrize("kind", [c.MoveRole, c.ProbeEngine, c.EngineChanged, c.Decided, e.Tick, e.EngineJoined])
def test_what_is_no_request_s_stays_in_control(kind: type) -> None:
    assert kind not in typing.get_args(wire.ToRelay) + typing.get_args(wire.FromRelay)


def test_every_command_for_a_request_goes_to_relays_and_every_event_comes_from_them() -> None:
    of_requests = {kind for kind in typing.get_args(c.AnyCommand) if "request" in kind.__struct_fields__}
    assert of_requests <= set(typing.get_args(wire.ToRelay))
    told = {kind for kind in typing.get_args(e.AnyEvent) if {"request", "requests"} & set(kind.__struct_fields__)}
    inside = {e.RequestArrived, *typing.get_args(typing.get_type_hints(wire.Over)["event"])}
    assert told - inside <= set(typing.get_args(wire.FromRelay))


def test_both_ends_know_what_to_do_with_all_that_they_are_sent(tmp_path: Path) -> None:
    async def test() -> None:
        fleet, loop = check_text(BASE).fleet, asyncio.get_running_loop()
        assert fleet is not None
        hub = Hub(Settings.of(fleet), loop, Journal(None), Metrics(), fleet, 2)
        assert set(hub._on) == set(typing.get_args(wire.FromRelay))
        ours, theirs = socket.socketpair()
        with ours, theirs:
            relay = Relay(Part(expand(fleet), load_profile("demo"), tmp_path, None), loop, ours)
            assert set(relay._do) == set(typing.get_args(wire.ToRelay))

    asyncio.run(test())
