"""Making a report of runs."""

from collections.abc import Sequence

from narwhal.report.document import Report
from narwhal.report.taken import Run


def make_report(runs: Sequence[Run]) -> Report:
    """The document of these runs."""
    return Report(kind="Report", runs=[run.document() for run in runs], comparison=None, requests=[])
