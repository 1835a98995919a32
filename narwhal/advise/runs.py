"""Running simulations, many at a time, within a budget of time."""

import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.pool import AsyncResult, Pool
from typing import TypeVar

from narwhal.advise.arms import Arm
from narwhal.advise.case import Base, Case
from narwhal.simulate import UNSCORED_S, WINDOW_S, parse_policy, passes, run

_T = TypeVar("_T")
Counts = tuple[tuple[int, int], ...]
"""(offered, met) of each scored window of a run."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run."""

    case: Case
    arm: Arm
    rate_rps: float
    seed: int


class SpentError(Exception):
    """The time for runs is over."""


def holds(base: Base, job: Job) -> bool:
    """Whether 90 % of the offered requests meet their targets; stops as soon as that is impossible."""
    return passes(job.case.scenario(base), parse_policy(job.arm.policy), job.rate_rps, job.seed)


def counts(base: Base, job: Job) -> Counts:
    """What became of the requests of a whole run, window by window."""
    outcome = run(job.case.scenario(base), parse_policy(job.arm.policy), job.rate_rps, job.seed)
    return outcome.score.counts[round(UNSCORED_S / WINDOW_S) :]


_base: Base
"""What the processes of a pool inherit: traffic is a function, which no pipe carries."""


def _begin(base: Base) -> None:
    global _base
    _base = base
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, and that ends these
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _holds(job: Job) -> bool:
    return holds(_base, job)


def _counts(job: Job) -> Counts:
    return counts(_base, job)


class Runner:
    """Runs jobs of a base, in processes of its own where there are several; the order of jobs decides nothing.

    Raises `SpentError` once `budget_s` is over: what runs then is given up.
    """

    def __init__(self, base: Base, budget_s: float, pool: Pool | None = None) -> None:
        self.base = base
        self.started_t = time.monotonic()
        self.budget_s = budget_s
        self.done = 0
        """Runs that are over."""
        self._pool = pool

    @property
    def spent_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_t

    def hold(self, jobs: Sequence[Job]) -> list[bool]:
        """`holds` of each job."""
        if self._pool is None:
            return [holds(self.base, job) for job in self._one_by_one(jobs)]
        return self._wait([self._pool.apply_async(_holds, (job,)) for job in jobs])

    def count(self, jobs: Sequence[Job]) -> list[Counts]:
        """`counts` of each job."""
        if self._pool is None:
            return [counts(self.base, job) for job in self._one_by_one(jobs)]
        return self._wait([self._pool.apply_async(_counts, (job,)) for job in jobs])

    def _one_by_one(self, jobs: Sequence[Job]) -> Iterator[Job]:
        for job in jobs:
            if self.spent_s > self.budget_s:
                raise SpentError
            yield job
            self.done += 1

    def _wait(self, results: "Sequence[AsyncResult[_T]]") -> list[_T]:
        values = []
        for result in results:
            try:
                values.append(result.get(max(self.budget_s - self.spent_s, 0.0)))
            except multiprocessing.TimeoutError:
                raise SpentError from None
            self.done += 1
        return values


@contextmanager
def runner(base: Base, budget_s: float, processes: int) -> Iterator[Runner]:
    """A runner; its processes are gone afterwards, whatever they were doing."""
    if processes < 2:
        yield Runner(base, budget_s)
        return
    with multiprocessing.get_context("fork").Pool(processes, _begin, (base,)) as pool:
        yield Runner(base, budget_s, pool)
