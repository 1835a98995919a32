"""The other end: a thread that reads what the leading router knows, and keeps the latest of it."""

import http.client
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

import narwhal
from narwhal.router.standby.line import FOLLOW, NAMES, FollowLine

log = logging.getLogger("narwhal.router")
SILENCE_S = 10.0
"""How long a line may take to come, in seconds."""
RETRY_S = 0.25
"""Time between two attempts to reach the other router."""
Connect = Callable[[], tuple[http.client.HTTPConnection, dict[str, str]]]
"""Makes a connection to the other router's admin listener, not open yet, and the headers to ask with. May raise
`OSError`."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the other router, as of `heard_t`."""

    heard_t: float
    """When the last line came, on this process's monotonic clock."""
    now_t: float
    """What the other's clock showed then."""
    tokens_per_byte: float
    pieces: dict[str, msgspec.Raw] = field(default_factory=dict)

    @property
    def shift_s(self) -> float:
        """What this clock shows beyond the other's."""
        return self.heard_t - self.now_t


class Follower:
    """Follows until it is stopped. `wanted` says whether there is anybody to follow now: not while this one leads."""

    def __init__(self, connect: Connect, wanted: Callable[[], bool]) -> None:
        self.known: Known | None = None
        """Replaced as a whole by the thread."""
        self.lines = 0
        """Lines that were read."""
        self.trouble = "nothing was heard yet"
        """Why nothing is heard; empty while it is."""
        self._connect = connect
        self._wanted = wanted
        self._stopped = threading.Event()
        self._decode = msgspec.json.Decoder(FollowLine).decode
        self._thread = threading.Thread(target=self._run, name="follow", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Follow no more; a read under way ends by itself."""
        self._stopped.set()

    def lag_s(self) -> float | None:
        """Seconds since the last line; None before the first."""
        return None if self.known is None else time.monotonic() - self.known.heard_t

    def _run(self) -> None:
        while not self._stopped.wait(RETRY_S):
            if not self._wanted():
                continue
            try:
                self._follow()
            except (OSError, http.client.HTTPException, msgspec.DecodeError, ValueError) as error:
                self._note(getattr(error, "strerror", None) or str(error) or type(error).__name__)

    def _note(self, trouble: str) -> None:
        if trouble != self.trouble:
            log.info("following the other router: %s", trouble or "its state comes")
        self.trouble = trouble

    def _follow(self) -> None:
        """Read one stream to its end."""
        connection, headers = self._connect()
        connection.timeout = SILENCE_S
        try:
            connection.request("GET", FOLLOW, headers=headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise ValueError(f"it answers {answer.status}: {answer.read(300).decode('utf-8', 'replace')}")
            pieces: dict[str, msgspec.Raw] = {}
            while self._wanted() and not self._stopped.is_set():
                line = answer.readline()
                if not line.endswith(b"\n"):
                    raise ValueError("it ended the stream")
                self._take(line, pieces)
        except TimeoutError:
            raise ValueError(f"no line within {SILENCE_S:g} s") from None
        finally:
            connection.close()

    def _take(self, text: bytes, pieces: dict[str, msgspec.Raw]) -> None:
        heard_t = time.monotonic()
        self.lines += 1
        line = self._decode(text)
        if line.version != narwhal.__version__:
            raise ValueError(f"it is narwhal {line.version}, this is {narwhal.__version__}: its state is not read")
        pieces.update({name: msgspec.Raw(bytes(piece)) for name, piece in line.pieces.items()})
        if pieces.keys() >= NAMES:
            self.known = Known(heard_t, line.now_t, line.tokens_per_byte, dict(pieces))
            self._note("")
