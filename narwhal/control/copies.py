"""Copies of what would be written too slowly on the router's loop: another thread makes the text (`snapshot`)."""

import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable
from typing import Any

from narwhal.control.demand import Remembered
from narwhal.control.link import Link

WriteAll = Callable[[Iterable[Any]], list[Any]]
"""Writes each of some values."""
MOST_REMEMBERED = 8192
"""Entries of a history that a cut without residents holds."""


def little_endian(numbers: "array[float]") -> bytes:
    """The numbers as they are written on every machine."""
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


class Copy(ABC):
    """A copy of what would be written too slowly on the loop: another thread makes its `row`.

    No dataclass, nor a tuple: msgspec would write those by itself.
    """

    __slots__ = ()

    @abstractmethod
    def row(self) -> list[Any]:
        """What is written."""


class LinksCopy(Copy):
    """The links of an engine, of which there are thousands in all: the loop takes their fields, and no more."""

    __slots__ = ("canaries", "first", "producers", "values", "write")

    def __init__(self, write: WriteAll, first: int, links: dict[str, Link], get: Callable[[Any], Any]) -> None:
        self.write = write
        self.first = first
        """Number of the first of them."""
        self.producers = list(links)
        self.values: list[tuple[Any, ...]] = list(map(get, links.values()))
        self.canaries = [[*link.canaries] for link in links.values()]

    def row(self) -> list[Any]:
        """What is written."""
        row: list[Any] = ["d"]
        for place, (producer, values) in enumerate(zip(self.producers, self.values, strict=True)):
            held = [self.canaries[place] if type(each) is list else each for each in values[:-1]]
            row += producer, ["c", "Link", self.first + place, *self.write(held)]
        return row


class FlatCopy(Copy):
    """An object of plain fields and lists of such."""

    __slots__ = ("name", "number", "values", "write")

    def __init__(self, write: WriteAll, name: str, number: int, values: Iterable[Any]) -> None:
        self.write, self.name, self.number = write, name, number
        self.values = [[*each] if type(each) is list else each for each in values]

    def row(self) -> list[Any]:
        """What is written."""
        return ["c", self.name, self.number, *self.write(self.values)]


class HistoryCopy(Copy):
    """A history, which is made small."""

    __slots__ = ("number", "remembered")

    def __init__(self, number: int, remembered: Remembered) -> None:
        self.number = number
        self.remembered = remembered

    def row(self) -> list[Any]:
        """What is written."""
        end_t, ages, values = self.remembered.values(MOST_REMEMBERED)
        return ["h", self.number, self.remembered.keep_s, end_t, little_endian(ages), little_endian(values)]
