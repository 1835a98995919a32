"""The one client of a router's admin listener: state, decisions, and what an operator may ask for."""

import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from narwhal.fleet.unix import UnixConnection

Json = dict[str, Any]
RELOAD_S = 60.0
"""How long a router may take to read its fleet file again, the reloads before included."""


class AddressError(Exception):
    """What was given as a router's URL is none."""


class UnreachableError(Exception):
    """Nothing answered at the router's admin address; the message names it and the reason."""


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

    def state(self) -> Json:
        """The `RouterState` document."""
        return self._ask("GET", "/narwhal/state")

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

    def hold(self, reason: str) -> Json:
        """Freeze role moves."""
        return self._ask("POST", "/narwhal/hold", {"reason": reason})

    def unhold(self) -> Json:
        """Let role moves go on."""
        return self._ask("POST", "/narwhal/unhold", {})

    def move(self, engine: str, role: str) -> Json:
        """Ask for a role; the answer is the `Decision`."""
        return self._ask("POST", "/narwhal/move", {"engine": engine, "role": role})

    def swap(self, a: str, b: str) -> Json:
        """Ask two engines to exchange roles; the answer is the `Decision`."""
        return self._ask("POST", "/narwhal/swap", {"a": a, "b": b})

    def handover(self) -> Json:
        """Have the other router lead: `{"leader": HOST}` once it does."""
        return self._ask("POST", "/narwhal/handover", {}, timeout_s=RELOAD_S)

    def reload(self, *, check: bool) -> Json:
        """Have the fleet file read again; the answer is the `Reload` document. `check`: change nothing."""
        return self._ask("POST", "/narwhal/reload", {"check": check}, timeout_s=RELOAD_S)

    def _ask(self, method: str, path: str, body: Json | None = None, *, timeout_s: float = 0.0) -> Json:
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = self._connection()
        connection.timeout = timeout_s or self._timeout_s
        try:
            connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
            answer = connection.getresponse()
            status, raw = answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            reason = _reason(error)
            raise UnreachableError(f"no router answers at {self.url}: {reason}") from error
        finally:
            connection.close()
        return self._read(status, raw)

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
