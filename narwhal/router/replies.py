"""What the router itself answers with: response heads, and errors as OpenAI's clients read them."""

import math
from http import HTTPStatus
from typing import Any

import msgspec

REASONS = {status.value: status.phrase for status in HTTPStatus}
_STATUS_LINES = {status: f"HTTP/1.1 {status} {phrase}".encode() for status, phrase in REASONS.items()}


def head(status: int, kind: bytes, headers: bytes, length: int, keep_alive: bool) -> bytes:
    """A response head; `headers` are whole lines with their CRLF."""
    return b"%s\r\ncontent-type: %s\r\ncontent-length: %d\r\n%s%s\r\n" % (
        _STATUS_LINES.get(status) or b"HTTP/1.1 %d Status" % status,
        kind,
        length,
        headers,
        b"" if keep_alive else b"connection: close\r\n",
    )


def retry_after(seconds: float) -> bytes:
    """The header line that says when to come again; none where waiting does not help (0)."""
    return b"retry-after: %d\r\n" % max(math.ceil(seconds), 1) if seconds > 0 else b""


def error_body(
    status: int, message: str, *, kind: str = "", param: str | None = None, code: str | None = None
) -> bytes:
    """An error as OpenAI's clients read it: `{"error": {message, type, param, code}}`."""
    return msgspec.json.encode({"error": error_of(status, message, kind=kind, param=param, code=code)})


def error_of(
    status: int, message: str, *, kind: str = "", param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The parts of such an error."""
    kind = kind or _KINDS.get(status, "InternalServerError" if status >= 500 else "BadRequestError")
    return {"message": message, "type": kind, "param": param, "code": code or status}


_KINDS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowed",
    429: "RateLimitError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
    504: "TimeoutError",
    505: "BadRequestError",
}


class _WithError(msgspec.Struct):
    error: Any = None


_error = msgspec.json.Decoder(_WithError).decode


def as_error(status: int, body: bytes, route: str) -> bytes:
    """An engine's error as it is, or as OpenAI's clients read one when it has another shape."""
    try:
        if isinstance(_error(body).error, dict):
            return body
    except msgspec.DecodeError:
        pass
    missing = status in (404, 405, 501)
    return error_body(status, f"the model is not served on {route}" if missing else REASONS.get(status, "Error"))
