"""Following what a router tells live, in a thread that tries again when the router is lost."""

import threading
import time

from narwhal.diagnose.client import AdminClient, Json, RefusedError, UnreachableError

RETRY_S = 1.0
"""Time between two attempts, in seconds."""
PARTS = frozenset(["state", "decisions", "changes", "links"])


def look_once(admin: AdminClient) -> dict[str, Json]:
    """One of each part. Raises `UnreachableError`, `RefusedError`."""
    parts: dict[str, Json] = {}
    for part in admin.live():
        parts[part["part"]] = part
        if parts.keys() >= PARTS:
            break
    return parts


class Watch:
    """`parts`: the latest of each, replaced as a whole. `trouble`: why the router is lost; empty while it is heard."""

    def __init__(self, admin: AdminClient, parts: dict[str, Json]) -> None:
        self.parts = parts
        self.trouble = ""
        self.heard_t = time.monotonic()
        """When the last part came, on this process's monotonic clock."""
        self._admin = admin
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Follow no more; a read under way ends by itself."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                for part in self._admin.live():
                    self.parts = {**self.parts, part["part"]: part}
                    self.heard_t, self.trouble = time.monotonic(), ""
                    if self._stopped.is_set():
                        return
            except (UnreachableError, RefusedError) as error:
                self.trouble = str(error)
            self._stopped.wait(RETRY_S)
