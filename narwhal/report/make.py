"""Making a report of runs."""

from collections.abc import Sequence

from narwhal.report.compare import compare
from narwhal.report.document import Report
from narwhal.report.story import stories
from narwhal.report.taken import Run


def make_report(
    runs: Sequence[Run], against: Run | None = None, *, seed: int = 1, requests: Sequence[str] = ()
) -> Report:
    """The document of these runs and of these requests of them; with `against` the first run is judged against it.

    Raises `ReportError` for a request that is nowhere.
    """
    comparison = compare(runs[0], against, seed) if against is not None else None
    shown = runs if against is None else [*runs, against]
    return Report(
        kind="Report",
        runs=[run.document() for run in shown],
        comparison=comparison,
        requests=stories(shown, requests),
    )
