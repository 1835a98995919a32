"""The error of a result file."""


class ResultError(Exception):
    """A file that is no result which a report can take; the message says why."""
