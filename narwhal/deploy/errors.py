"""What can go wrong on the operator's machine: a sentence, the file it is about, and what to do."""


class DeployError(Exception):
    """A deployment that cannot go on; `findings`: something was found out, rather than that something is broken."""

    def __init__(self, code: str, message: str, *, hint: str, file: str | None = None, findings: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.file = file
        self.hint = hint
        self.findings = findings
