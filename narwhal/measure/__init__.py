"""What did happen: open-loop load over real sockets, and what became of each request.

`run_points` and `search_points` measure a benchmark and keep its evidence, which `read_evidence` reads again.

`poisson` makes a schedule, `Load` plays it against a router or an engine, `score` and `time_to_adapt` judge
the outcomes against the targets of a fleet file.
"""

from narwhal.measure.bench import Measured, Plan, Ran, run_points, search_points, summary, table
from narwhal.measure.errors import BenchError, EvidenceError
from narwhal.measure.evidence import DOCUMENT, SEARCH, BenchEvidence, BenchRequest, BenchSample, BenchSearch, Quantiles
from narwhal.measure.judging import Adaptation, Score, meets, recent_attainment, score, time_to_adapt, windows
from narwhal.measure.keeping import PARTIAL, load_evidence, read_evidence
from narwhal.measure.load import Load, Target
from narwhal.measure.outcome import Outcome
from narwhal.measure.schedule import Phase, Planned, poisson

__all__ = [
    "load_evidence",
    "Quantiles",
    "EvidenceError",
    "BenchSample",
    "BenchRequest",
    "SEARCH",
    "PARTIAL",
    "DOCUMENT",
    "Adaptation",
    "BenchError",
    "BenchEvidence",
    "BenchSearch",
    "Load",
    "Measured",
    "Outcome",
    "Phase",
    "Plan",
    "Planned",
    "Ran",
    "Score",
    "Target",
    "meets",
    "poisson",
    "read_evidence",
    "recent_attainment",
    "run_points",
    "score",
    "search_points",
    "summary",
    "table",
    "time_to_adapt",
    "windows",
]
