"""The sidecar that attests one engine: `python -m narwhal.engine.sidecar LAUNCH HOST PORT`.

It stays below 30 MB, so it imports neither pydantic nor the fleet's models: `narwhal engine attest` has checked the
launch record and becomes this program. `GET /attestation` answers an `Attestation`, 503 while the engine is not there.
"""

import hashlib
import http.client
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from narwhal.engine import process
from narwhal.engine.nixl import Handshake, HandshakeError, shake_hands
from narwhal.engine.packages import package_versions

_TIMEOUT_S = 5.0
_FRESH_S = 1.0
"""How long an attestation is answered again without a new look."""
_CACHE_INFO = re.compile(r"^vllm:cache_config_info\{([^}]*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Launch = dict[str, Any]
Packages = Callable[[], dict[str, str | None]]


class Attester:
    """Looks at one engine. What cannot change within one life of its process is asked once a life."""

    def __init__(self, launch: Launch, digest: str, packages: Packages) -> None:
        self._launch = launch
        self._digest = digest
        self._packages = packages
        self._life: tuple[int, int] | None = None
        self._once: dict[str, Any] = {}
        self._seen: tuple[float, dict[str, Any]] | None = None
        self._lock = threading.Lock()

    def attest(self) -> dict[str, Any]:
        """The attestation of the engine as it is now, at most a second old."""
        with self._lock:
            if self._seen is None or time.monotonic() - self._seen[0] > _FRESH_S:
                self._seen = (time.monotonic(), self._look())
            return self._seen[1]

    def _look(self) -> dict[str, Any]:
        unknown: dict[str, str] = {}
        found = self._process(unknown)
        served = self._served(unknown)
        if found is None and served["version"] is None:
            self._life = None
        return {
            "apiVersion": "narwhal/v1",
            "kind": "Attestation",
            "engine": self._launch["engine"],
            "launch_digest": self._digest,
            "process": found,
            "model_digest": self._launch["model"]["digest"],
            "connector": self._launch["connector"],
            **served,
            **self._lifelong(found, served, unknown),
            "unknown": unknown,
        }

    def _process(self, unknown: dict[str, str]) -> dict[str, Any] | None:
        pid = process.listener(self._launch["port"])
        ticks = None if pid is None else process.start_ticks(pid)
        if pid is None or ticks is None:
            unknown["process"] = f"no process that this user may see listens on port {self._launch['port']}"
            return None
        return {
            "boot_id": process.boot_id(),
            "pid": pid,
            "start_ticks": ticks,
            "started_at_s": process.started_at_s(ticks),
            "executable": process.executable(pid),
        }

    def _served(self, unknown: dict[str, str]) -> dict[str, Any]:
        """What the engine's server tells: names, version, model."""
        models = _get_json(self._launch, "/v1/models")
        version = (_get_json(self._launch, "/version") or {}).get("version")
        cards = (models or {}).get("data") or []
        names = [str(card.get("id")) for card in cards]
        generation = _after(names, "narwhal.gen.")
        digest = _after(names, "narwhal.launch.")
        if version is None:
            unknown["version"] = "the server does not answer"
        if generation is None:
            unknown["generation"] = "it serves no name that begins with narwhal.gen.: `narwhal engine run` adds one"
        return {
            "generation": generation,
            "running_launch_digest": None if digest is None else f"sha256:{digest}",
            "version": version,
            "model_path": cards[0].get("root") if cards else None,
            "max_model_len": cards[0].get("max_model_len") if cards else None,
        }

    def _lifelong(
        self, found: dict[str, Any] | None, served: dict[str, Any], unknown: dict[str, str]
    ) -> dict[str, Any]:
        """What stays for a process's life: packages, ids, cache."""
        life = None if found is None else (found["pid"], found["start_ticks"])
        if life is not None and life == self._life:
            unknown.update(self._once["unknown"])
            return {key: value for key, value in self._once.items() if key != "unknown"}
        reasons: dict[str, str] = {}
        hands = self._handshake(served["version"] or "", reasons)
        values = {
            "packages": self._packages(),
            "engine_id": hands.engine_id if hands else None,
            "compatibility_hash": hands.compatibility_hash if hands else None,
            "attention": hands.attention if hands else None,
            "cache": self._cache(hands, reasons),
        }
        unknown.update(reasons)
        if hands is not None or self._launch["program"] != "vllm":
            self._life, self._once = life, values | {"unknown": reasons}
        return values

    def _handshake(self, version: str, reasons: dict[str, str]) -> Handshake | None:
        launch = self._launch
        try:
            if launch["program"] != "vllm":
                raise HandshakeError("a simulated engine has no NIXL agent")
            return shake_hands(launch["side_channel_host"], launch["side_channel_port"], version, _TIMEOUT_S)
        except HandshakeError as error:
            for name in ("engine_id", "compatibility_hash", "attention", "cache.bytes_per_token", "cache.layout"):
                reasons[name] = str(error)
            return None

    def _cache(self, hands: Handshake | None, reasons: dict[str, str]) -> dict[str, Any]:
        page = _get(self._launch, "/metrics") or b""
        info = _CACHE_INFO.search(page.decode("utf-8", "replace"))
        labels = dict(_LABEL.findall(info[1])) if info else {}
        if not labels:
            reasons["cache"] = "its metrics have no vllm:cache_config_info"
        ranks = self._launch["tensor_parallel"]
        return {
            "dtype": labels.get("cache_dtype"),
            "block_tokens": _number(labels.get("block_size")),
            "blocks": _number(labels.get("num_gpu_blocks")),
            "bytes_per_token": hands.block_bytes * ranks // hands.block_tokens if hands else None,
            "layout": hands.layout if hands else None,
        }


def _after(names: list[str], prefix: str) -> str | None:
    return next((name.removeprefix(prefix) for name in names if name.startswith(prefix)), None)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _get(launch: Launch, path: str) -> bytes | None:
    connection = http.client.HTTPConnection(launch["host"], launch["port"], timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        return body if response.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _get_json(launch: Launch, path: str) -> dict[str, Any] | None:
    try:
        parsed = json.loads(_get(launch, path) or b"null")
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def handler_of(attester: Attester) -> type[BaseHTTPRequestHandler]:
    """The request handler that answers with `attester`'s attestations."""

    class Handler(BaseHTTPRequestHandler):
        """`GET /attestation` and `GET /health`."""

        timeout = 10

        def do_GET(self) -> None:
            """Answer."""
            if self.path == "/health":
                self._answer(200, {})
            elif self.path == "/attestation":
                found = attester.attest()
                self._answer(503 if found["version"] is None else 200, found)
            else:
                self._answer(404, {"detail": "Not Found"})

        def _answer(self, status: int, document: dict[str, Any]) -> None:
            data = json.dumps(document, indent=2).encode() + b"\n"
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a request is not worth a line."""

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True


def main(arguments: list[str]) -> int:
    """Serve until killed."""
    path, host, port = arguments
    data = Path(path).read_bytes()
    launch: Launch = json.loads(data)
    if ":" in host:
        _Server.address_family = socket.AF_INET6
    attester = Attester(launch, f"sha256:{hashlib.sha256(data).hexdigest()}", lambda: running_packages(launch))
    with _Server((host, int(port)), handler_of(attester)) as server:
        sys.stderr.write(f"attests {launch['engine']} on {host} port {server.server_address[1]}\n")
        sys.stderr.flush()
        server.serve_forever()
    return 0


def running_packages(launch: Launch) -> dict[str, str | None]:
    """Versions of the packages that an engine runs with; none where they are in an image or it is simulated."""
    if launch["container"] or launch["program"] != "vllm":
        return {}
    try:
        return package_versions(launch["argv"][0], [*launch["packages"], "nixl", "torch"])
    except (OSError, ValueError):
        return {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
