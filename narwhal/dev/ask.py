"""Asking an engine or a router of this machine over HTTP, one request on one connection."""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit


def ask(
    url: str, path: str, body: dict[str, Any] | None = None, *, key: str = "", timeout_s: float = 30.0
) -> tuple[int, bytes]:
    """GET, or POST with a JSON `body`: status and body of the answer. Raises `OSError` when none comes.

    `key`: sent as the bearer token.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        if body is None:
            connection.request("GET", path)
        else:
            headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
            connection.request("POST", path, body=json.dumps(body), headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise OSError(f"{url}{path}: {error!r}") from error
    finally:
        connection.close()


_BY = ("standby", "deposed")
"""Reasons of a router that does not lead."""


def readiness(url: str, path: str) -> str:
    """What the server says on `path` within a second: `ready`, `standby` for a router that stands by, else ''.

    `not answering`: it takes connections, and says nothing.
    """
    try:
        status, body = ask(url, path, timeout_s=1.0)
        if status == 200:
            return "ready"
        return "standby" if status == 503 and json.loads(body).get("reason") in _BY else ""
    except TimeoutError:
        return "not answering"
    except (OSError, ValueError, AttributeError):
        return ""
