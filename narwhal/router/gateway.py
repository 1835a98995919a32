"""What the client listener serves. It tells nothing about the fleet."""

import os
import re
import time
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec

from narwhal.control.admission import Refusal
from narwhal.fleet.model import Fleet
from narwhal.router.door import RefusedError, parse
from narwhal.router.eligible import hindrance, resumable_routes
from narwhal.router.http import Connection
from narwhal.router.incoming import Incoming
from narwhal.router.replies import error_body, retry_after
from narwhal.router.routes import ROUTES
from narwhal.router.syntax import BadRequestError
from narwhal.router.tenants import DEFAULT, DeniedError, Keys

if TYPE_CHECKING:
    from narwhal.router.requests import Requests

_FORWARDED = frozenset([b"traceparent", b"tracestate"])
"""Headers of a client that go on to engines: the trace that a request belongs to (W3C Trace Context)."""
_PRINTABLE = re.compile(rb"[\x20-\x7e]{1,512}")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class Gateway:
    """The client listener: what engines serve, models, health."""

    def __init__(self, shell: "Requests", fleet: Fleet, keys: Keys, share: int = 1) -> None:
        self.shell = shell
        self.share = share
        """Gateways that `serving.max_buffered_bytes` is for."""
        self.model = model = fleet.model.name
        self.connections: set[Connection] = set()
        self.buffered = 0
        self.keys = keys
        """Who may come in; replaced as a whole by a reload."""
        self.retune(fleet)
        self._prefix = os.urandom(6).hex().encode()
        self._count = 0
        self._model_card = {"id": model, "object": "model", "created": int(time.time()), "owned_by": "narwhal"}

    def retune(self, fleet: Fleet) -> None:
        """Have a fleet file's limits for what arrives from now on."""
        serving = fleet.serving
        self.max_body, self.max_head = serving.max_body_bytes, serving.max_header_bytes
        self.max_buffered = max(serving.max_buffered_bytes // self.share, self.max_body)
        self._resumable_routes = resumable_routes(fleet)
        self._media_hosts = frozenset(host.lower() for host in serving.media_hosts)

    def judge(self, connection: Connection, method: bytes, path: str, headers: dict[bytes, bytes], length: int) -> int:
        """Refuse a request whose body is not small by its head alone, now or later. Raises `BadRequestError`."""
        tenant = self._tenant(path, headers)
        route = ROUTES.get(path)
        if route is None or method != b"POST":
            return 0
        least, most = 0 if route.light else max(length, 0), length if length >= 0 else self.max_body
        refusal = self.shell.foresee(tenant, least, most)
        if refusal is not None:
            raise self._unread(refusal, headers)

        def told(number: int, refusal: Refusal | None) -> None:
            connection.judged(number, None if refusal is None else self._unread(refusal, headers))

        return self.shell.ask(tenant, least, most, told)

    def _unread(self, refusal: Refusal, headers: dict[bytes, bytes]) -> BadRequestError:
        lines = b"x-request-id: %s\r\n" % self._request_id(headers) + retry_after(refusal.retry_after_s)
        return BadRequestError(refusal.status, refusal.message, code=refusal.code, headers=lines)

    def refused(self, code: str) -> None:
        """Count a request that was refused before it was whole."""
        counts = self.shell.metrics.refused_unread
        counts[code] = counts.get(code, 0) + 1

    def _tenant(self, path: str, headers: dict[bytes, bytes]) -> str:
        """Whose request it is. Raises `DeniedError`."""
        if path in _OPEN:
            return DEFAULT
        try:
            return self.keys.tenant(headers.get(b"authorization"))
        except DeniedError as denied:
            code = str(denied.code)
            self.shell.metrics.denied[code] = self.shell.metrics.denied.get(code, 0) + 1
            raise

    def _request_id(self, headers: dict[bytes, bytes]) -> bytes:
        """The client's name for a request, or one of our own."""
        given = headers.get(b"x-request-id", b"")
        if given and _REQUEST_ID.fullmatch(given):
            return given
        self._count += 1
        return b"%s-%x" % (self._prefix, self._count)

    def handle(self, connection: Connection, request: Incoming) -> None:
        """Answer one request."""
        path, method = request.path, request.method
        try:
            tenant = self._tenant(path, request.headers)
        except DeniedError as denied:
            body = error_body(denied.status, denied.message, code=denied.code)
            connection.respond(denied.status, body, headers=denied.headers)
            return
        if path in ROUTES:
            if method == "POST":
                self._generate(connection, request, tenant)
            else:
                _wrong_method(connection, b"POST")
            return
        if method not in ("GET", "HEAD") and (path in _PAGES or path.startswith("/v1/models/")):
            _wrong_method(connection, b"GET")
        elif path == "/health":
            connection.respond(200, b"{}")
        elif path == "/ready":
            status, answer = self.shell.readiness()
            connection.respond(status, msgspec.json.encode(answer))
        elif path == "/v1/models":
            connection.respond(200, msgspec.json.encode({"object": "list", "data": [self._model_card]}))
        elif path.startswith("/v1/models/"):
            self._one_model(connection, unquote(path.removeprefix("/v1/models/")))
        else:
            connection.respond(404, error_body(404, f"no route {path[:200]}"))

    def _one_model(self, connection: Connection, name: str) -> None:
        if name == self.model:
            connection.respond(200, msgspec.json.encode(self._model_card))
        else:
            connection.respond(404, error_body(404, f"The model `{name}` does not exist.", param="model"))

    def _generate(self, connection: Connection, request: Incoming, tenant: str) -> None:
        request_id = self._request_id(request.headers)
        refusing = self.shell.refusing
        if refusing is not None:
            headers = retry_after(refusing.retry_after_s) + b"x-request-id: %s\r\n" % request_id
            body = error_body(refusing.status, refusing.message, code=refusing.code)
            connection.respond(refusing.status, body, headers=headers)
            return
        kind = request.headers.get(b"content-type", b"")
        if (
            kind != b"application/json" and kind.partition(b";")[0].strip().lower() != b"application/json"
        ):  # as vLLM; it also keeps other sites' forms away from a loopback router
            body = error_body(400, "Unsupported Media Type: Only 'application/json' is allowed", kind="Bad Request")
            connection.respond(400, body, headers=b"x-request-id: %s\r\n" % request_id)
            return
        try:
            parsed = parse(request.path, request.body, self.model, self._media_hosts)
        except RefusedError as refused:
            body = error_body(refused.status, refused.message, kind=refused.kind, param=refused.param)
            connection.respond(refused.status, body, headers=b"x-request-id: %s\r\n" % request_id)
            return
        if (
            parsed.stream
            and parsed.route in self._resumable_routes
            and request.headers.get(b"x-narwhal-continue", b"").lower() != b"off"
        ):
            parsed.resumable = not hindrance(parsed.route, parsed.body, stream=True, whole=parsed.whole)
        if not _FORWARDED.isdisjoint(request.headers):
            parsed.forwarded = _forwarded(request.headers)
        self.shell.arrived(connection, parsed, request_id, request.arrived_t, tenant)


_OPEN = ("/health", "/ready")
"""What needs no key: what a load balancer asks."""
_PAGES = ("/health", "/ready", "/v1/models")


def _forwarded(headers: dict[bytes, bytes]) -> bytes:
    """The header lines of a client that go on to engines."""
    lines = b""
    for name in sorted(_FORWARDED):
        value = headers.get(name)
        if value is not None and _PRINTABLE.fullmatch(value):
            lines += b"%s: %s\r\n" % (name, value)
    return lines


def _wrong_method(connection: Connection, allowed: bytes) -> None:
    connection.respond(405, error_body(405, "Method Not Allowed"), headers=b"allow: %s\r\n" % allowed)
