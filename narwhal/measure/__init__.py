"""What did happen: open-loop load over real sockets, and what became of each request.

`poisson` makes a schedule, `Load` plays it against a router or an engine, `score` and `time_to_adapt` judge
the outcomes against the targets of a fleet file.
"""

from narwhal.measure.judging import Adaptation, Score, meets, recent_attainment, score, time_to_adapt, windows
from narwhal.measure.load import Load, Target
from narwhal.measure.outcome import Outcome
from narwhal.measure.schedule import Phase, Planned, poisson

__all__ = [
    "Adaptation",
    "Load",
    "Outcome",
    "Phase",
    "Planned",
    "Score",
    "Target",
    "meets",
    "poisson",
    "recent_attainment",
    "score",
    "time_to_adapt",
    "windows",
]
