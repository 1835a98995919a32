"""The room's errors."""


class BenchError(Exception):
    """A benchmark that cannot be run as it was asked for."""

    def __init__(self, code: str, message: str, hint: str, *, failed: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        """What to do."""
        self.failed = failed
        """Whether the fleet is in the way, not what was asked."""


class EvidenceError(Exception):
    """A folder of evidence of which not all is there as it was written; the message says what is not."""
