"""The whole state of a `Control` as plain data, and back: a file of events that begins with one can be replayed.

Objects are written as lists, their fields in the order of `fields`, so that thousands of requests stay small:

    number, text, true, null      themselves            ["f", "inf"]       a number that JSON has no word for
    ["l", …] ["t", …]             list, tuple           ["q", maxlen, …]   deque
    ["d", key, value, …]          dictionary            ["o", key, …]      dictionary that keeps an order
    ["a", base64]                 array of little-endian doubles
    ["c", class, number, …]       object                ["r", number]      an object that was written before
    ["s", class, {…}]             immutable record      ["n", word, …]     dictionary of requests, by their numbers
    ["k"]                         what the settings or the code give: a new control has it already
    ["h", number, span, time, base64, base64]   history: ages at that time and values, of single precision

Requests stand apart, each an array of its fields: they are the one kind of state of which there are thousands. The
accounts, whose shares they name, stand before them.

A cut is taken at one moment, on the router's loop, and costs little more than a copy of each request (a third of a
microsecond); it holds nothing that control changes later, so another thread can make the text.

Settings are no part of it; they stand beside it. Decisions that were made are none either: the journal has them.
"""

import base64
import sys
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import attrgetter, is_
from typing import Any, Literal

import msgspec
from pydantic import BaseModel

from narwhal.control.budget import Budget
from narwhal.control.canaries import Canaries
from narwhal.control.control import Control
from narwhal.control.copies import Copy, FlatCopy, HistoryCopy, LinksCopy, little_endian
from narwhal.control.curves import Curves
from narwhal.control.demand import Demand, Flow, History
from narwhal.control.departure import Departure
from narwhal.control.drift import Drift
from narwhal.control.evidence import Evidence, Settled
from narwhal.control.generations import Generations, Readmission
from narwhal.control.health import Health
from narwhal.control.learning import Estimate, Learned
from narwhal.control.link import Link
from narwhal.control.links import Links
from narwhal.control.meter import Meter
from narwhal.control.projection import Projection
from narwhal.control.queue import FairQueue, Line, PriorityClass
from narwhal.control.reactive import Reactive
from narwhal.control.roles import RoleController, Timer
from narwhal.control.setbacks import Setbacks
from narwhal.control.state import Engine, Pool, Request, Settings
from narwhal.control.suspicion import Case, Suspicion
from narwhal.control.tenants import Account, Accounts, Share
from narwhal.control.trials import Trial, Trials
from narwhal.control.vitals import Drain, Vitals

STATE: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(Canaries, Case, Drain, Drift, Generations, Link, Links, Readmission, Suspicion, Trial, Trials, Vitals),
        *(Account, Accounts, Demand, Departure, Engine, Estimate, Evidence, FairQueue, Flow, Health, History, Learned),
        *(Budget, Line, Meter, Pool, PriorityClass, Projection, Reactive, RoleController, Setbacks, Settled, Share),
        Timer,
    )
}
"""Classes whose objects hold state: nothing else is made from a file."""
RECORDS: dict[str, type[msgspec.Struct]] = {"Curves": Curves}
PARTS = ("pool", "demand", "health", "lifecycle", "roles")
"""Attributes of `Control` that hold state."""
MADE = ("decisions", "last")
"""Attributes that hold decisions that were made: nothing is decided with them."""
PIECE = 500
"""Requests that are encoded in one piece."""
_copy: Callable[[Request], Request] = Request.__copy__  # type: ignore[attr-defined]  # missing in msgspec's stub
_PLAIN = frozenset((bool, int, str, type(None)))
_DICTIONARIES: dict[str, Callable[[Iterable[tuple[int, Request]]], dict[int, Request]]] = {"d": dict, "o": OrderedDict}


class Snapshot(msgspec.Struct, frozen=True, tag=True):
    """A line in a file of events: what control knew before the next event."""

    t: float
    """Time of the next event, in seconds on the router's clock."""
    version: str
    """Version of the router."""
    settings: dict[str, Any]
    """Settings in force, as in the line `Settings`."""
    state: dict[str, Any]
    """`fields`: the fields of each class; `accounts`; `requests`; `parts`: the parts of control."""


class LinesLost(msgspec.Struct, frozen=True, tag=True):
    """A line in a file of events: what follows does not come of what stands before it.

    `lines` events are missing, since the disk could not be written; 0: the router took up what another one knew.
    """

    lines: int


class SnapshotError(ValueError):
    """Data that is no state of this version's control."""


class Cut:
    """The state of a control at one moment. Nothing in it changes any more, whatever control does meanwhile."""

    def __init__(self, control: Control, *, residents: bool = True) -> None:
        """`residents` False: without the requests. Raises `TypeError` when something is reachable that is no state."""
        control.demand.count()  # what is only noted holds several times each, which `_shifted` does not know
        requests = control.pool.requests if residents else {}
        writer = _Writer(control.pool.requests, residents=residents)
        self._accounts = writer.write(control.pool.accounts)
        self._parts = [writer.write(getattr(control, name)) for name in PARTS]
        self._fields = writer.fields
        self._numbers = writer.numbers
        self._requests: list[Request] = list(map(_copy, requests.values()))

    def state(self, pause: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """The state, to be encoded as JSON; what is large in it is encoded already, with a pause after each piece."""
        encode = msgspec.json.Encoder(enc_hook=self._written).encode

        def piece(value: Any) -> bytes:
            text = encode(value)
            pause()
            return text

        rows = (piece(self._requests[first : first + PIECE])[1:-1] for first in range(0, len(self._requests), PIECE))
        return {
            "fields": self._fields,
            "accounts": self._accounts,
            "requests": msgspec.Raw(b"[%b]" % b",".join(rows)),
            "parts": [msgspec.Raw(piece(part)) for part in self._parts],
        }

    def _written(self, value: Any) -> Any:
        """What is written of a value that the cut holds as a copy."""
        return value.row() if isinstance(value, Copy) else self._numbers[id(value)]  # a share


def as_read(control: Control) -> dict[str, Any]:
    """The state of a control as it is read from a file."""
    state: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(Cut(control).state()))
    return state


def restore(settings: Settings, state: dict[str, Any], *, shift_s: float = 0.0) -> Control:
    """A control in that state: it answers every event as the one that was written. Raises `SnapshotError`.

    `shift_s` is added to every time in it, for a driver whose clock shows so much more.
    """
    control = Control(settings)
    try:
        reader = _Reader(state["fields"], shift_s)
        reader.read(state["accounts"], control.pool.accounts)
        reader.requests(state["requests"])
        parts = state["parts"]
        if len(parts) != len(PARTS):
            raise SnapshotError(f"{len(parts)} parts of {len(PARTS)}")
        for name, part in zip(PARTS, parts, strict=True):
            reader.read(part, getattr(control, name))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
        raise SnapshotError(f"not the state of a control of this version: {error}") from error
    return control


def _names(kind: type, thing: object) -> list[str]:
    """Attributes of an object, in a fixed order."""
    slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
    return [name for name in [*slots, *getattr(thing, "__dict__", ())] if name not in MADE]


class _Writer:
    """One pass over everything that is reachable."""

    def __init__(self, requests: dict[int, Request], *, residents: bool) -> None:
        self._residents = residents
        self.fields: dict[str, list[str]] = {"Request": list(Request.__struct_fields__)}
        self._requests = requests
        self.numbers: dict[int, int] = {}
        """Of the objects that were written, by their `id`."""
        self._getters: dict[type, Callable[[Any], tuple[Any, ...]]] = {}
        self._containers: dict[type, Callable[[Any], Any]] = {
            float: lambda value: ["f", repr(value)],
            list: lambda value: ["l", *self.all(value)],
            array: lambda value: ["a", little_endian(value)],
            tuple: lambda value: ["t", *self.all(value)],
            deque: lambda value: ["q", value.maxlen, *self.all(value)],
            dict: lambda value: self._dictionary("d", value),
            OrderedDict: lambda value: self._dictionary("o", value if residents else {}),  # prompts on an engine
        }

    def write(self, value: Any) -> Any:
        """Any value that state may hold. Raises `TypeError` for another: it belongs into `STATE`."""
        kind = type(value)
        if kind in _PLAIN or (kind is float and value - value == 0.0):
            return value
        container = self._containers.get(kind)
        if container is not None:
            return container(value)
        if STATE.get(kind.__name__) is kind:
            return self._object(kind, value)
        if RECORDS.get(kind.__name__) is kind:
            return ["s", kind.__name__, value]
        if isinstance(value, BaseModel | Settings) or callable(value):
            return ["k"]
        raise TypeError(f"{kind.__module__}.{kind.__name__} is not known to be state of control")

    def _object(self, kind: type, value: Any) -> Any:
        number = self.numbers.get(id(value))
        if number is not None:
            return ["r", number]
        number = self.numbers[id(value)] = len(self.numbers)
        get = self._getter(kind, value)
        if kind is Vitals or kind is Drain:
            return FlatCopy(self.all, kind.__name__, number, get(value)[:-1])
        if kind is History and not self._residents:
            return HistoryCopy(number, value.remembered())
        return ["c", kind.__name__, number, *self.all(get(value)[:-1])]

    def _getter(self, kind: type, value: Any) -> Callable[[Any], tuple[Any, ...]]:
        """Takes all fields of an object of a kind, and the first once more: a tuple, even of one."""
        get = self._getters.get(kind)
        if get is None:
            names = self.fields[kind.__name__] = _names(kind, value)
            get = self._getters[kind] = attrgetter(*names, names[0])
        return get

    def _links(self, links: dict[str, Link]) -> LinksCopy:
        """The links of one engine; nothing else leads to them."""
        first = len(self.numbers)
        self.numbers.update(zip(map(id, links.values()), range(first, first + len(links)), strict=True))
        return LinksCopy(self.all, first, links, self._getter(Link, next(iter(links.values()))))

    def all(self, values: Iterable[Any]) -> list[Any]:
        """Each of some values: what is plain without a call, since there are thousands."""
        write = self.write
        return [v if (k := type(v)) in _PLAIN or (k is float and v - v == 0.0) else write(v) for v in values]

    def _dictionary(self, word: str, value: dict[Any, Any]) -> Any:
        kind = type(next(iter(value.values()), None))
        if kind is Link:
            return self._links(value)
        if kind is not Request:
            return [word, *self.all(chain.from_iterable(value.items()))]
        if value is not self._requests and not all(map(is_, map(self._requests.get, value), value.values())):
            raise TypeError("a request that is not known by its number")
        return ["n", word, *(value if self._residents else ())]


class _Reader:
    """One pass in the same order; objects that a new control has are filled, others are made."""

    def __init__(self, fields: dict[str, list[str]], shift_s: float) -> None:
        self._fields = fields
        self._shift_s = shift_s
        self._made: dict[int, Any] = {}
        self._requests: dict[int, Request] = {}
        self._read: dict[str, Callable[[list[Any], Any], Any]] = {
            "f": lambda row, there: float(row[1]),
            "n": lambda row, there: _DICTIONARIES[row[1]]((number, self._requests[number]) for number in row[2:]),
            "a": lambda row, there: _array(row[1]),
            "l": lambda row, there: [self.read(item) for item in row[1:]],
            "t": lambda row, there: tuple(self.read(item) for item in row[1:]),
            "q": lambda row, there: deque((self.read(item) for item in row[2:]), maxlen=row[1]),
            "d": lambda row, there: dict(self._items(row)),
            "o": lambda row, there: OrderedDict(self._items(row)),
            "r": lambda row, there: self._made[row[1]],
            "s": lambda row, there: msgspec.convert(row[2], RECORDS[row[1]]),
            "c": self._object,
            "h": self._history,
        }

    def requests(self, rows: list[Any]) -> None:
        """Make all requests."""
        if self._fields["Request"] != list(Request.__struct_fields__):
            raise SnapshotError("Request has other fields")
        requests = msgspec.convert(rows, list[Request], dec_hook=lambda kind, number: self._made[number])
        self._requests = {request.id: request for request in requests}

    def read(self, row: Any, there: Any = None) -> Any:
        """What a value says; `there`: what a new control has in its place."""
        return self._read[row[0]](row, there) if type(row) is list else row

    def _items(self, row: list[Any]) -> Iterator[tuple[Any, Any]]:
        for place in range(1, len(row), 2):
            yield self.read(row[place]), self.read(row[place + 1])

    def _history(self, row: list[Any], there: Any) -> History:
        _, number, keep_s, end_t, ages, values = row
        history = self._made[number] = there if type(there) is History else History(keep_s)
        end_t += self._shift_s
        history.remember(keep_s, [end_t - age for age in _array(ages, "f")], _array(values, "f"))
        return history

    def _object(self, row: list[Any], there: Any) -> Any:
        kind, names = STATE[row[1]], self._fields[row[1]]
        thing = there if type(there) is kind else object.__new__(kind)
        if type(there) is kind and sorted(names) != sorted(_names(kind, thing)):
            raise SnapshotError(f"{row[1]} has other fields")
        self._made[row[2]] = thing
        for name, value in zip(names, row[3:], strict=True):
            if value != ["k"]:
                read = self.read(value, getattr(thing, name, None))
                setattr(thing, name, _shifted(read, self._shift_s) if self._shift_s and _is_time(name) else read)
            elif not hasattr(thing, name):
                raise SnapshotError(f"{row[1]}.{name} cannot be made anew")
        return thing


def _is_time(name: str) -> bool:
    """Whether an attribute holds times on the driver's clock."""
    return name.endswith(("_t", "_times"))


def _shifted(value: Any, shift_s: float) -> Any:
    """A time, or a collection of times or of tuples that begin with one, as a clock shows it that is so much ahead."""
    if isinstance(value, float | int):
        return value + shift_s
    if isinstance(value, dict):
        return {key: _shifted(each, shift_s) for key, each in value.items()}
    if isinstance(value, array):
        return array("d", [each + shift_s for each in value])
    if isinstance(value, list):
        return [_shifted(each, shift_s) for each in value]
    if isinstance(value, tuple):
        return (value[0] + shift_s, *value[1:])
    return value


def _array(text: str, code: Literal["d", "f"] = "d") -> "array[float]":
    numbers = array(code, base64.b64decode(text, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
