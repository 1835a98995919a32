"""Plain HTTP to the parts of a fleet: admin listeners, engines, etcd."""

import base64
import http.client
import json
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from narwhal.drills.drill import DrillError
from narwhal.fleet.unix import UnixConnection

_TIMEOUT_S = 30.0


def get(url: str, timeout_s: float = _TIMEOUT_S) -> tuple[int, bytes]:
    """Status and body. Raises `OSError` when nobody answers."""
    return _send(url, "GET", None, timeout_s)


def post(url: str, body: object, timeout_s: float = _TIMEOUT_S, method: str = "POST") -> Any:
    """The JSON document that a request is answered with. Raises `OSError`, and `DrillError` for another status."""
    status, data = _send(url, method, body, timeout_s)
    if status >= 300:
        raise DrillError(f"{method} {urlsplit(url).path} was answered {status}: {data[:200]!r}")
    return json.loads(data or b"{}")


def ask_socket(path: Path, method: str, route: str, body: object = None) -> tuple[int, Any]:
    """Status and document of a request to a router's Unix socket; its text where it is no JSON. Raises `OSError`."""
    with closing(UnixConnection(path, _TIMEOUT_S)) as connection:
        data = None if body is None else json.dumps(body)
        connection.request(method, route, data, {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
    try:
        return answer.status, json.loads(text)
    except ValueError:
        return answer.status, text


def metric(page: str, name: str) -> float:
    """The sum of a metric's samples on a page, whatever their labels."""
    samples = [line for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rsplit(" ", 1)[1]) for line in samples)


def etcd_value(url: str, key: str) -> bytes:
    """What stands under a key of etcd; empty: nothing."""
    found = post(f"{url}/v3/kv/range", {"key": base64.b64encode(key.encode()).decode()})
    return base64.b64decode(found["kvs"][0]["value"]) if found.get("kvs") else b""


def _send(url: str, method: str, body: object, timeout_s: float) -> tuple[int, bytes]:
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)) as connection:
        data = None if body is None else json.dumps(body)
        connection.request(method, parts.path, data, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
