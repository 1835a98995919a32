"""What a user of dev mode can run into."""


class DevError(Exception):
    """Something that the user can cause or cure: a stable code, a sentence, and what to do next.

    `file` is the file it is about, if any; `failed` tells a failed operation from unusable input.
    """

    def __init__(
        self, code: str, message: str, *, hint: str | None = None, file: str | None = None, failed: bool = False
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.file = file
        self.failed = failed
