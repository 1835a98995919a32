"""Clients of a drill: what each of them was answered, token by token, and when."""

import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from narwhal.drills.drill import PATIENCE_S, eventually

Address = tuple[str, int]
_CONNECT_S = 2.0
"""How long a client waits for a connection before it asks the other address."""
_PAUSE_S = 0.05
"""How long a client waits when nobody serves it, before it asks again."""
_numbers = itertools.count(1)
OnEvent = Callable[["Answer"], bool]
"""Hears of each event of a stream; True: leave it."""


@dataclass(slots=True)
class Answer:
    """One attempt of a client. Times on the monotonic clock of this machine, which is the routers' too."""

    id: str
    """Its `x-request-id`."""
    address: Address
    sent_t: float
    sent: bool = False
    """Whether somebody took the connection, and it was asked."""
    status: int = 0
    """0: no answer came."""
    text: str = ""
    tokens: int | None = None
    """Of the answer, as `usage` tells."""
    first_t: float | None = None
    """When the first text came; of a buffered answer, when it was whole."""
    last_t: float = 0.0
    """When the last text came."""
    ended_t: float = 0.0
    gap_s: float = 0.0
    """Longest time between two texts of a stream."""
    events: int = 0
    errors: list[str] = field(default_factory=list)
    """Codes of the errors that the server told; more than one is a fault of its own."""
    broken: str = ""
    """Why the connection ended before the answer did; empty: it did not."""
    done: bool = False
    """Whether the answer came to its proper end."""
    retry_after: str = ""
    left: bool = False
    """Whether the client left before the end."""

    @property
    def whole(self) -> bool:
        """Whether it was served to the end."""
        return self.status == 200 and self.done and not self.errors

    @property
    def refused(self) -> bool:
        """Whether a router said that it does not serve it now."""
        return self.status in (429, 503)

    @property
    def says(self) -> str:
        """What went wrong, for people."""
        return f"status {self.status} {', '.join(self.errors)} {self.broken} after {self.events} events".strip()


def ask(
    address: Address,
    body: dict[str, Any],
    *,
    path: str = "/v1/completions",
    headers: dict[str, str] | None = None,
    timeout_s: float = PATIENCE_S,
    on_event: OnEvent | None = None,
) -> Answer:
    """Ask one router, and read its answer to the end. What goes wrong stands in the answer; nothing is raised."""
    answer = Answer(f"drill-{next(_numbers):06d}", address, time.monotonic())
    connection = http.client.HTTPConnection(*address, timeout=min(_CONNECT_S, timeout_s))
    try:
        with closing(connection):
            connection.connect()
            connection.sock.settimeout(timeout_s)
            sent = {"content-type": "application/json", "x-request-id": answer.id, **(headers or {})}
            connection.request("POST", path, json.dumps(body), sent)
            answer.sent = True
            _read(connection.getresponse(), answer, on_event)
    except (OSError, http.client.HTTPException) as error:
        answer.broken = str(error) or type(error).__name__
    answer.ended_t = time.monotonic()
    return answer


def _read(response: http.client.HTTPResponse, answer: Answer, on_event: OnEvent | None) -> None:
    answer.status = response.status
    answer.retry_after = response.headers.get("retry-after", "")
    if response.status == 200 and "event-stream" in response.headers.get("content-type", ""):
        while line := response.readline():
            if line.startswith(b"data: "):
                _event(line[6:].strip(), answer)
                if on_event is not None and on_event(answer):
                    answer.left = True
                    return
        return
    document = json.loads(response.read() or b"{}")
    answer.done = True
    if "error" in document:
        answer.errors.append(_code(document["error"]))
    else:
        answer.first_t = time.monotonic()
        answer.tokens = document["usage"]["completion_tokens"]
        answer.text = "".join(choice.get("text") or "" for choice in document["choices"])


def _event(data: bytes, answer: Answer) -> None:
    now = time.monotonic()
    answer.events += 1
    if data == b"[DONE]":
        answer.done = True
        return
    document = json.loads(data)
    if "error" in document:
        answer.errors.append(_code(document["error"]))
    if usage := document.get("usage"):
        answer.tokens = usage["completion_tokens"]
    text = "".join(choice.get("text") or "" for choice in document.get("choices", ()))
    if text:
        if answer.first_t is None:
            answer.first_t = now
        else:
            answer.gap_s = max(answer.gap_s, now - answer.last_t)
        answer.last_t = now
        answer.text += text


def _code(error: Any) -> str:
    return str(error.get("code") or error.get("type") or error.get("message"))


def completion(model: str, number: int, *, tokens: int = 8, stream: bool = False, words: int = 40) -> dict[str, Any]:
    """A request whose prompt is like no other number's."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": f"{number} " + "the narwhal looks at the ice " * (words // 6),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    return {**body, "stream": True, "stream_options": {"include_usage": True}} if stream else body


@dataclass(slots=True)
class Asked:
    """What a client wanted, and each attempt at it."""

    attempts: list[Answer]

    @property
    def served(self) -> bool:
        """Whether it was served in the end, as far as its client stayed."""
        return self.attempts[-1].whole or self.attempts[-1].left

    @property
    def sent_t(self) -> float:
        """When it was asked first."""
        return self.attempts[0].sent_t

    @property
    def waited_s(self) -> float:
        """From the first attempt to the first text; to the end where none came."""
        last = self.attempts[-1]
        return (last.first_t or last.ended_t) - self.sent_t


class Clients:
    """Clients that ask one request after another, every other one streamed, while the context lasts.

    With `retry` a client without a whole answer asks the next address, for `patience_s`; else the first answer counts.
    `timeout_s`: how long it waits for the next byte. `leaves`: of so many requests one is left after its third event.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        model: str,
        count: int = 4,
        *,
        retry: bool = False,
        tokens: int = 8,
        pause_s: float = 0.0,
        patience_s: float = PATIENCE_S,
        timeout_s: float = PATIENCE_S,
        leaves: int = 0,
    ) -> None:
        self.asked: list[Asked] = []
        """What has ended."""
        self._addresses, self._model, self._tokens = addresses, model, tokens
        self._retry, self._pause_s, self._patience_s, self._timeout_s = retry, pause_s, patience_s, timeout_s
        self._leaves = leaves
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._bodies = itertools.count()
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(count)]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    @property
    def failed(self) -> list[Asked]:
        """What was not served."""
        return [asked for asked in list(self.asked) if not asked.served]

    @property
    def attempts(self) -> list[Answer]:
        """All attempts of all clients."""
        return [attempt for asked in list(self.asked) for attempt in asked.attempts]

    def since(self, t: float) -> list[Asked]:
        """What was asked after some time, and has ended."""
        return [asked for asked in list(self.asked) if asked.sent_t >= t]

    def more(self, count: int) -> float:
        """Wait until so many requests were asked from now on, and served; returns the time at which it began."""
        now = time.monotonic()
        eventually(lambda: sum(a.served for a in self.since(now)) >= count, f"answers to {count} further requests")
        return now

    def _run(self, number: int) -> None:
        streams = itertools.cycle([number % 2 == 0, number % 2 == 1])
        while not self._over.is_set():
            with self._lock:
                place = next(self._bodies)
            leaves = self._leaves and place % self._leaves == 0
            asked = self._ask(
                completion(self._model, place, tokens=self._tokens, stream=next(streams)), _third if leaves else None
            )
            with self._lock:
                self.asked.append(asked)
            self._over.wait(self._pause_s)

    def _ask(self, body: dict[str, Any], on_event: OnEvent | None) -> Asked:
        until_t = time.monotonic() + self._patience_s
        asked = Asked([])
        for address in itertools.cycle(self._addresses):
            answer = ask(address, body, timeout_s=self._timeout_s, on_event=on_event)
            asked.attempts.append(answer)
            if asked.served or not self._retry or time.monotonic() > until_t:
                return asked
            if address == self._addresses[-1]:
                time.sleep(_PAUSE_S)
        raise AssertionError("a cycle does not end")


def _third(answer: Answer) -> bool:
    return answer.events >= 3


def say_failed(failed: Sequence[Asked]) -> str:
    """The first requests that were not served, for people."""
    return "; ".join(asked.attempts[-1].says for asked in failed[:3])
