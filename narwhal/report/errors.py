"""The room's error."""


class ReportError(Exception):
    """A report that cannot be made as it was asked for."""

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        """What to do."""
