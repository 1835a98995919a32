"""Searches over runs: the highest rate that holds, and the fewest engines that do.

A search yields the jobs that it wants judged next, and is sent the answers; `together` has several of them in step, so
that all that can run at a time does.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from narwhal.advise.arms import Arm
from narwhal.advise.case import Case
from narwhal.advise.runs import Job, Runner

T = TypeVar("T")
Search = Generator[list[Job], list[bool], T]

PRECISION = 0.05
"""A search for a rate stops when what held and what did not are this close, as a share."""
WIDEST = 16.0
"""It looks no further than this many times its start, or this part of it."""
STEP = 1.15
"""First step away from the start; steps grow."""


@dataclass(slots=True)
class Climb:
    """How far arms of one kind got. Rates in requests per second."""

    held_rps: float
    """Highest rate at which one of them held; 0: none did."""
    failed_rps: float | None
    """Lowest rate at which none did; None: none was found."""
    best: list[Arm]
    """Those that held there."""
    brackets: dict[Arm, tuple[float, float | None]] = field(default_factory=dict)
    """The same two rates of each arm."""


def climb(case: Case, arms: Sequence[Arm], seed: int, start_rps: float) -> Search[Climb]:
    """The highest rate that one of `arms` holds, where holding is monotone in the rate."""
    alive, best = list(arms), list[Arm]()
    brackets: dict[Arm, tuple[float, float | None]] = dict.fromkeys(arms, (0.0, None))
    low, high, rate, step = 0.0, None, start_rps, STEP
    while start_rps / WIDEST <= rate <= start_rps * WIDEST:
        answers = yield [Job(case, arm, rate, seed) for arm in alive]
        for arm, held in zip(alive, answers, strict=True):
            below, above = brackets[arm]
            brackets[arm] = (max(below, rate), above) if held else (below, rate)
        holding = [arm for arm, held in zip(alive, answers, strict=True) if held]
        if holding:
            alive, best, low = holding, holding, rate
        else:
            high = rate
        if high is None or not low:
            rate, step = (rate * step, step * step) if high is None else (rate / step, step * step)
            continue
        if high / low <= 1 + PRECISION:
            break
        rate = (low * high) ** 0.5
    return Climb(low, high, best, brackets)


def fewest(
    case_of: Callable[[int], Case],
    arms_of: Callable[[int], Sequence[Arm]],
    rate_rps: float,
    seed: int,
    bounds: tuple[int, int, int],
) -> Search[tuple[int, Arm] | None]:
    """The fewest engines with which one of `arms_of` them holds a rate, and which does.

    `bounds`: the least and the most engines, and how many to begin with. None: not even the most hold.
    """
    least, most, start = bounds
    failing, found = least - 1, None
    count = min(max(start, least), most)
    step = 1
    while True:
        arms = arms_of(count)
        answers = yield [Job(case_of(count), arm, rate_rps, seed) for arm in arms]
        holding = next((arm for arm, held in zip(arms, answers, strict=True) if held), None)
        if holding is not None:
            found = (count, holding)
        else:
            failing = count
            if found is None and count == most:
                return None
        if found is not None and found[0] - failing == 1:
            return found
        if found is None:
            count, step = min(count + step, most), 2 * step
        else:
            count, step = max((failing + found[0]) // 2, found[0] - step), 2 * step


def together(runner: Runner, searches: Sequence[Search[T]], say: Callable[[str], None]) -> list[T]:
    """The results of searches that are carried on in step; `say` is told of each."""
    results: dict[int, T] = {}
    wanted: dict[int, list[Job]] = {}

    def go_on(number: int, answers: list[bool] | None) -> None:
        try:
            search = searches[number]
            wanted[number] = next(search) if answers is None else search.send(answers)
        except StopIteration as end:
            results[number] = end.value
            wanted.pop(number, None)

    for number in range(len(searches)):
        go_on(number, None)
    while wanted:
        asked = {number: list(jobs) for number, jobs in wanted.items()}
        flat = [job for jobs in asked.values() for job in jobs]
        say(f"    {len(flat)} runs ({runner.spent_s:.0f} of {runner.budget_s:g} s)")
        answers = iter(runner.hold(flat))
        for number, jobs in asked.items():
            go_on(number, [next(answers) for _ in jobs])
    return [results[number] for number in range(len(searches))]
