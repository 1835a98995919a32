"""What a report holds in memory: runs, their points, and the scored requests of each."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from narwhal.measure import BenchEvidence
from narwhal.report.document import Found, ReportPoint, ReportRun, Unusable

COUNTING = ("counts", "missed")
"""Standings of our own points whose figures count and that no newer ones replace."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A scored request. Times in seconds; None: it has none, or the source does not say."""

    planned_s: float
    """When it was to be sent, after the load began; of other tools: when it was sent."""
    kind: str
    prompt_tokens: int
    max_tokens: int
    ttft_s: float | None
    tpot_s: float | None
    gap_s: float | None
    met: bool | None
    """Whether it was served within both targets; None: there are none."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A point that was taken into the report."""

    point: ReportPoint
    requests: Sequence[Seen] = ()
    """Scored requests by planned time; empty: the source keeps none."""
    evidence: BenchEvidence | None = None
    """Our own evidence; None: it is another tool's."""
    folder: Path | None = None
    """Where the evidence is."""

    @property
    def counts(self) -> bool:
        """Whether plots and comparisons may stand on it."""
        return self.point.standing not in ("invalid", "older")


@dataclass(slots=True)
class Run:
    """What one argument named."""

    name: str
    path: Path
    taken: list[Taken] = field(default_factory=list)
    searches: list[Found] = field(default_factory=list)
    unusable: list[Unusable] = field(default_factory=list)

    def document(self) -> ReportRun:
        """The run as the report has it."""
        return ReportRun(
            name=self.name,
            points=[one.point for one in self.taken],
            searches=self.searches,
            unusable=self.unusable,
        )

    @property
    def counting(self) -> list[Taken]:
        """Its points that plots and comparisons may stand on."""
        return [one for one in self.taken if one.counts]


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The quantile of sorted values as evidence has it: the value that such a share does not exceed; None of none."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None


def known(values: Iterable[float | None]) -> list[float]:
    """The values that are there, sorted."""
    return sorted(value for value in values if value is not None)


def names(paths: Sequence[Path]) -> Iterator[str]:
    """The ends of paths, as long as it takes to tell them apart."""
    parts = [path.resolve().parts for path in paths]
    for own in parts:
        others = [other for other in parts if other != own]
        for length in range(1, len(own) + 1):
            if all(other[-length:] != own[-length:] for other in others):
                break
        yield "/".join(own[-length:])
