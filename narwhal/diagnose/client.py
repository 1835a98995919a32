"""The one client of a router's admin listener: state, decisions, and what an operator may ask for."""

import http.client
import json
import ssl
import uuid
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from narwhal.fleet.unix import UnixConnection

Json = dict[str, Any]
TRIES = 3
"""How often an order is given whose answer is lost."""
RELOAD_S = 60.0
"""How long a router may take to read its fleet file again, the reloads before included."""


class AddressError(Exception):
    """What was given as a router's URL is none."""


class UnreachableError(Exception):
    """Nothing answered at the router's admin address; the message names it and the reason."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        """Whether somebody was reached, who may have got the request."""


class RefusedError(Exception):
    """The router answered, and said no; the message is the router's own."""

    def __init__(self, message: str, status: int, body: Json) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        """The answer, such as the `Decision` whose guard held."""


class AdminClient:
    """Talks to `url`: `unix:PATH`, or `http://HOST:PORT` with a bearer token where the listener wants one."""

    def __init__(self, url: str, *, token: str = "", timeout_s: float = 5.0) -> None:
        self._token = token
        self._timeout_s = timeout_s
        self._path = Path(url.removeprefix("unix:").removeprefix("//")) if url.startswith("unix:") else None
        if self._path is not None:
            self.url = f"unix:{self._path}"
            return
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError:
            raise AddressError(f"{url!r} is no router URL") from None
        if not host or parts.scheme not in ("http", "https"):
            raise AddressError(f"{url!r} is no router URL")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._tls = parts.scheme == "https"
        self._host = host
        self._port = port

    @property
    def socket(self) -> Path | None:
        """The Unix socket that it talks to; None: it talks over TCP."""
        return self._path

    def state(self) -> Json:
        """The `RouterState` document."""
        return self._ask("GET", "/narwhal/state")

    def ready(self) -> Json:
        """What `/ready` says, whether it is ready or not."""
        status, raw = self._send("GET", "/ready", None, {"Accept": "application/json"}, 0.0)
        return self._read(HTTPStatus.OK if status == HTTPStatus.SERVICE_UNAVAILABLE else status, raw)

    def moves(self) -> Json:
        """The `Moves` document: the latest decisions that moved or were held, oldest first, and the router's time."""
        return self._ask("GET", "/narwhal/moves")

    def decisions(self, *, held: bool = False) -> list[Json]:
        """The latest decisions of any outcome, oldest first; with `held` only those a rule or guard held."""
        path = "/narwhal/decisions" + ("?held=1" if held else "")
        return _list(self._ask("GET", path), "decisions", "moves")

    def links(self) -> Json:
        """The `Links` document: every directed pair that was used or tried."""
        return self._ask("GET", "/narwhal/links")

    def changes(self) -> Json:
        """The `Changes` document: the latest changes of engines and pairs, oldest first."""
        return self._ask("GET", "/narwhal/changes")

    def journal(self, after: str | None) -> Json:
        """The `JournalRows` after a place; None: its end, without rows."""
        return self._ask("GET", "/narwhal/journal" + (f"?after={after}" if after is not None else ""))

    def live(self) -> Iterator[Json]:
        """The parts of `/narwhal/events` as they come. Raises `UnreachableError` when they end or none comes."""
        connection = self._connection()
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            connection.request("GET", "/narwhal/events", headers=headers)
            answer = connection.getresponse()
            if answer.status >= HTTPStatus.BAD_REQUEST:
                self._read(answer.status, answer.read())
            while line := answer.readline():
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
            raise UnreachableError(f"the router at {self.url} ended the stream", sent=True)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise UnreachableError(f"no router answers at {self.url}: {_reason(error)}", sent=True) from error
        finally:
            connection.close()

    def metrics(self) -> str:
        """The router's metrics, in Prometheus' text format."""
        status, raw = self._send("GET", "/metrics", None, {"Accept": "text/plain"}, 0.0)
        if status >= HTTPStatus.BAD_REQUEST:
            self._read(status, raw)
        return raw.decode()

    def hold(self, reason: str) -> Json:
        """Freeze role moves."""
        return self._hold("hold", {"reason": reason})

    def unhold(self) -> Json:
        """Let role moves go on."""
        return self._hold("unhold", {})

    def move(self, engine: str, role: str) -> Json:
        """Ask for a role; the answer is the `Decision`."""
        return self._decide("move", {"engine": engine, "role": role})

    def swap(self, a: str, b: str) -> Json:
        """Ask two engines to exchange roles; the answer is the `Decision`."""
        return self._decide("swap", {"a": a, "b": b})

    def drain(
        self,
        engines: list[str],
        *,
        deadline_s: float | None = None,
        stay: bool = False,
        cancel: bool = False,
        move: bool = False,
    ) -> Json:
        """Drain engines or hosts, or end their drains; the answer is the `OrderAnswer`."""
        body = {"engines": engines, "deadline_s": deadline_s, "stay": stay, "cancel": cancel, "move": move}
        return self._order("drain", body)

    def readmit(self, engines: list[str]) -> Json:
        """End drains, and have engines that are out tried now; the answer is the `OrderAnswer`."""
        return self._order("readmit", {"engines": engines})

    def pin(self, engine: str, role: str) -> Json:
        """Bind an engine to a role, or to `none`; the answer is the `OrderAnswer`."""
        return self._order("pin", {"engine": engine, "role": role})

    def handover(self) -> Json:
        """Have the other router lead: `{"leader": HOST}` once it does."""
        return {"leader": self._order("handover", {}, timeout_s=RELOAD_S).get("leader")}

    def reload(self, *, check: bool) -> Json:
        """Have the fleet file read again; the answer is the `Reload` document. `check`: change nothing."""
        return self._part("reload", "reload", {"check": check}, timeout_s=RELOAD_S)

    def _hold(self, order: str, body: Json) -> Json:
        return {"hold": self._order(order, body).get("hold")}

    def _decide(self, order: str, body: Json) -> Json:
        return self._part("decision", order, body)

    def _part(self, part: str, order: str, body: Json, *, timeout_s: float = 0.0) -> Json:
        """One part of an order's answer; `RefusedError.body` is that part too, where there is one."""
        try:
            answer = self._order(order, body, timeout_s=timeout_s)
        except RefusedError as error:
            if error.body.get(part):
                error.body = error.body[part]
            raise
        return answer.get(part) or {}

    def _order(self, order: str, body: Json, *, timeout_s: float = 0.0) -> Json:
        """Give an order. When its answer is lost it is given again under the same key, so that it is done once."""
        key = uuid.uuid4().hex
        for _ in range(TRIES - 1):
            try:
                return self._ask("POST", f"/narwhal/{order}", body, timeout_s=timeout_s, key=key)
            except UnreachableError as error:
                if not error.sent:
                    raise
        return self._ask("POST", f"/narwhal/{order}", body, timeout_s=timeout_s, key=key)

    def _ask(self, method: str, path: str, body: Json | None = None, *, timeout_s: float = 0.0, key: str = "") -> Json:
        headers = {"Accept": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        return self._read(*self._send(method, path, body, headers, timeout_s))

    def _send(
        self, method: str, path: str, body: Json | None, headers: dict[str, str], timeout_s: float
    ) -> tuple[int, bytes]:
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = self._connection()
        connection.timeout = timeout_s or self._timeout_s
        sent = False
        try:
            connection.connect()
            sent = True
            connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            reason = _reason(error)
            raise UnreachableError(f"no router answers at {self.url}: {reason}", sent=sent) from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self._path is not None:
            return UnixConnection(self._path, self._timeout_s)
        if self._tls:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)

    def _read(self, status: int, raw: bytes) -> Json:
        try:
            answer = json.loads(raw) if raw else {}
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise UnreachableError(f"what answers at {self.url} is not a narwhal router's admin listener")
        if status >= 400:
            error = answer.get("error")
            said = error.get("message") if isinstance(error, dict) else error
            message = said or answer.get("reason") or f"the router answered {status}"
            raise RefusedError(str(message), status, answer)
        return answer


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}); SSL_CERT_FILE names your own authority"
    return error.strerror if isinstance(error, OSError) and error.strerror else repr(error)


def _list(answer: Json, *names: str) -> list[Json]:
    for name in names:
        if isinstance(found := answer.get(name), list):
            return found
    return []
