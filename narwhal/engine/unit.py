"""What systemd says of the unit that an engine runs by: whether it stays up, and its last words."""

import re
import subprocess

_MOST_RESTARTS = 2
"""An engine that has ended that often while somebody waits for it will not come up by itself."""
_LINES = 200
_LONGEST = 300
_TELLING = re.compile(r"(?:\w*(?:Error|Exception)\b|\b(?:error|ERROR|FAIL)\b).*")
_CONSEQUENCE = "Engine core initialization failed"
"""What vLLM's server says last, whatever it was."""


class Unit:
    """A unit of systemd, from now on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._restarts = int(self._shown().get("NRestarts", 0))

    def trouble(self) -> str | None:
        """Why waiting for it is in vain, in one line; None while it may still come up."""
        shown = self._shown()
        restarts = int(shown.get("NRestarts", 0)) - self._restarts
        if shown.get("ActiveState") != "failed" and restarts < _MOST_RESTARTS:
            return None
        return self._last_words() or "it ended, and its journal does not say why"

    def _shown(self) -> dict[str, str]:
        lines = _said(["systemctl", "show", "--property=ActiveState,NRestarts", self.name])
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def _last_words(self) -> str:
        lines = _said(["journalctl", f"--unit={self.name}", f"--lines={_LINES}", "--output=cat", "--no-pager"])
        telling = [found[0] for line in lines if _CONSEQUENCE not in line and (found := _TELLING.search(line))]
        return (telling or lines or [""])[-1].strip()[:_LONGEST]


def _said(argv: list[str]) -> list[str]:
    """What a program printed, line by line; nothing where it is not there."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.splitlines()
    except OSError:
        return []
