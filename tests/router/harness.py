"""A router process in front of engines that do exactly what a test says."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from narwhal.dev.ports import free_run
from narwhal.fleet.places import reachable

PATIENCE_S = 60.0
HANDOFF = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[493, 492]],
    "remote_engine_id": "eng-A",
    "remote_request_id": "cmpl-1",
    "remote_host": "127.0.0.1",
    "remote_port": 5601,
    "tp_size": 1,
}
METRICS = """\
vllm:num_requests_running{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.0
vllm:cache_config_info{block_size="16",kv_cache_size_tokens="65536"} 1.0
process_start_time_seconds 1.7e9
"""


def eventually(met: Callable[[], bool], what: str = "it") -> None:
    """Wait until something holds, for as long as a slow machine may need."""
    until_t = time.monotonic() + PATIENCE_S
    while not met():
        assert time.monotonic() < until_t, f"{what} never came to hold"
        time.sleep(0.01)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(document: object) -> bytes:
    """One server-sent event in a chunk of its own, as vLLM sends them."""
    text = document if isinstance(document, str) else json.dumps(document, separators=(",", ":"))
    return chunk(b"data: %s\n\n" % text.encode())


def token(text: str) -> bytes:
    return event({"id": "cmpl-1", "object": "text_completion", "choices": [{"index": 0, "text": text}]})


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
END = event("[DONE]") + b"0\r\n\r\n"
ERROR = event(
    {"error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}}
)


@dataclass
class Asked:
    """A request as an engine got it."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    connection: int

    @property
    def leg(self) -> int:
        """1 or 2 of a pair, 0: neither."""
        params = self.body.get("kv_transfer_params") if isinstance(self.body, dict) else None
        return 0 if not params else 1 if params.get("do_remote_decode") else 2


Answer = Callable[[Asked, socket.socket], None]


def reply(sock: socket.socket, document: object, status: int = 200) -> None:
    data = json.dumps(document).encode()
    sock.sendall(b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(data)))
    sock.sendall(data)


def leg_1(asked: Asked, sock: socket.socket) -> None:
    reply(sock, {"choices": [], "usage": {"prompt_tokens": 7}, "kv_transfer_params": HANDOFF})


def tokens(asked: Asked, sock: socket.socket) -> None:
    """What a healthy engine answers: `max_tokens` tokens, streamed or not."""
    count = asked.body.get("max_tokens", 4)
    usage = {"prompt_tokens": 7, "total_tokens": 7 + count, "completion_tokens": count}
    if not asked.body.get("stream"):
        text = "".join(f" t{n}" for n in range(count))
        reply(sock, {"id": "cmpl-1", "choices": [{"index": 0, "text": text}], "usage": usage})
        return
    pieces = [token(f" t{n}") for n in range(count)]
    if (asked.body.get("stream_options") or {}).get("include_usage"):
        pieces.append(event({"id": "cmpl-1", "choices": [], "usage": usage}))
    sock.sendall(STREAM_HEAD + b"".join(pieces) + END)


class FakeEngine:
    """An engine whose answers are a function that a test sets: it may write any bytes, wait, or close the socket."""

    def __init__(self, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.looked: Asked | None = None
        """The last look at `/health` or `/metrics`."""
        self._tls = tls
        self.leg_1: Answer = leg_1
        self.leg_2: Answer = tokens
        self.whole: Answer = tokens
        self.asked: list[Asked] = []
        self.healthy = True
        self.names = ["m"]
        """Names of its model."""
        self.started_at = "1.7e9"
        self.gone = threading.Event()
        """Set when a client closed a connection while an answer to it was due."""
        self._listener = socket.create_server(("127.0.0.1", port), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._count = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def generations(self) -> list[Asked]:
        """Generation requests it got."""
        return [asked for asked in self.asked if asked.method == "POST"]

    def reset(self) -> None:
        """Healthy answers again, nothing remembered."""
        self.leg_1, self.leg_2, self.whole, self.healthy = leg_1, tokens, tokens, True
        self.names, self.started_at = ["m"], "1.7e9"
        self.asked.clear()
        self.gone.clear()

    def wait_gone(self, sock: socket.socket) -> None:
        """Wait until the router closes this connection."""
        sock.settimeout(PATIENCE_S)
        with contextlib.suppress(OSError):
            if sock.recv(1) == b"":
                self.gone.set()
                return
        self.gone.set()

    def close_connections(self) -> None:
        for sock in self._connections:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._connections.clear()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # `close` alone would leave the accepting thread listening
        self._listener.close()
        self.close_connections()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._count += 1
                if self._tls is not None:  # the handshake is made by whoever reads first
                    sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                self._connections.append(sock)
                threading.Thread(target=self._converse, args=(sock, self._count), daemon=True).start()

    def _converse(self, sock: socket.socket, number: int) -> None:
        stream = sock.makefile("rb")
        with contextlib.suppress(OSError, ValueError), sock:
            while line := stream.readline():
                method, path, _ = line.decode().split(" ")
                headers = {}
                while (line := stream.readline().strip()) != b"":
                    name, _, value = line.decode("latin1").partition(":")
                    headers[name.lower()] = value.strip()
                data = stream.read(int(headers.get("content-length", "0")))
                asked = Asked(method, path, headers, json.loads(data) if data else None, number)
                self._answer(asked, sock)

    def _answer(self, asked: Asked, sock: socket.socket) -> None:
        if asked.path in ("/health", "/metrics"):
            self.looked = asked
        if asked.path == "/health":
            reply(sock, {}, 200 if self.healthy else 503)
        elif asked.path == "/version":
            reply(sock, {"version": "0.32.0"})
        elif asked.path == "/v1/models":
            reply(sock, {"object": "list", "data": [{"id": name} for name in self.names]})
        elif asked.path == "/metrics":
            data = METRICS.replace("1.7e9", self.started_at).encode()
            sock.sendall(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(data) + data
            )
        else:
            self.asked.append(asked)
            [self.whole, self.leg_1, self.leg_2][asked.leg](asked, sock)


FLEET = """\
apiVersion: narwhal/v1
kind: Fleet
metadata: {{name: lab}}
model: {{name: m, path: /models/m}}
slo: {{{slo}}}
hosts: [{{name: local}}]
engines:
  runtime: {{kind: simulated, profile: demo, speed: {speed}}}
  per_host: {count}
  max_model_len: 8192
  max_num_seqs: {seqs}
  port_base: {engine_port}
  side_channel_port_base: {side_port}{engine_more}
{overrides}
split: {{prefill: {prefill}, decode: {decode}}}
routers:
  primary: local
  port: {port}{workers}{tls}{tenants}
  admin: {{port: {admin_port}{admin}}}
controller: {{{controller}}}
serving: {{{serving}}}
recovery: {{{recovery}, canary: {{share: {canary}}}}}
observability: {{journal: {{max_bytes: {journal_bytes}, keep: {journal_keep}}}}}
"""


def connect_unix(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(PATIENCE_S)
    with reachable(path) as name:
        sock.connect(name)
    return sock


@dataclass
class Router:
    """A router process, and where it listens."""

    process: "subprocess.Popen[bytes]"
    port: int
    admin_port: int
    state_dir: Path
    log: Path
    token: str = ""
    given_socket: Path | None = None
    sockets: list[socket.socket] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        self.sockets.append(sock)
        return sock

    def __post_init__(self) -> None:
        self.admin_socket = self.given_socket or self.state_dir / f"admin-{self.admin_port}.sock"

    def send(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None, *, admin: bool = False
    ) -> tuple[int, dict[str, str], bytes]:
        """One request on a connection of its own: status, headers, body. Orders go over the Unix socket."""
        port = self.admin_port if admin else self.port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        if admin and method == "POST" and not self.token:
            connection.sock = connect_unix(self.admin_socket)
        with contextlib.closing(connection):
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            sent = {"content-type": "application/json", **(headers or {})}
            if admin and self.token:
                sent.setdefault("authorization", f"Bearer {self.token}")
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()

    def state(self) -> Any:
        return json.loads(self.send("GET", "/narwhal/state", admin=True)[2])

    def rows(self, kind: str) -> list[Any]:
        """The journal's rows of a kind."""
        path = self.state_dir / "journal" / "journal.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [row for row in map(json.loads, lines) if row["type"] == kind]

    def rss_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+)", status)
        assert match is not None
        return int(match[1]) * 1024

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.send("GET", "/ready", admin=True)[0] == 200
        except OSError:
            return False

    def wait_listening(self) -> None:
        """Wait until both listeners accept, whether or not the router is ready."""

        def listens() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            try:
                return all(self.send("GET", "/health", admin=admin)[0] == 200 for admin in (False, True))
            except OSError:
                return False

        eventually(listens, "listening")

    def stop(self) -> int:
        for sock in self.sockets:
            sock.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        return self.process.returncode


def write_fleet(folder: Path, ports: list[int], **options: Any) -> tuple[Path, int, int]:
    """A fleet file for engines at these ports (none: at free ports); returns it and the router's two ports."""
    count = options.pop("count", len(ports))
    first = free_run(2 + 2 * count)
    prefill = options.pop("prefill", count // 2)
    scheme = options.pop("engine_scheme", "http")
    overrides = "".join(f'    local/{n}: {{url: "{scheme}://127.0.0.1:{port}"}}\n' for n, port in enumerate(ports))
    values = {
        "serving": "admission: open, max_body_bytes: 65536, max_header_bytes: 8192, shutdown_s: 5",
        "recovery": "probe_interval_s: 0.1, probe_timeout_s: 3, readmit_after: 1",
        "canary": 0,  # engines are asked what tests ask
        "slo": "ttft_s: 10.0, tpot_s: 1.0",
        "speed": 1.0,
        "admin": "",
        "tenants": "",
        "engine_more": "",
        "controller": "enabled: false",
        "seqs": 256,
        "journal_bytes": 67108864,
        "journal_keep": 2,
    }
    workers = options.pop("workers", int(os.environ.get("NARWHAL_TEST_WORKERS", "1")))
    values["workers"] = f"\n  workers: {workers}" if workers > 1 else ""
    values["tls"] = f"\n  tls: {tls}" if (tls := options.pop("tls", "")) else ""
    text = FLEET.format(
        **{**values, **options},
        count=count,
        overrides="  overrides:\n" + overrides if overrides else "",
        prefill=prefill,
        decode=count - prefill,
        engine_port=first + 2,
        side_port=first + 2 + count,
        port=first,
        admin_port=first + 1,
    )
    path = folder / "fleet.yaml"
    path.write_text(text)
    return path, first, first + 1


def start_router(folder: Path, fleet: Path, port: int, admin_port: int, **more: Any) -> Router:
    log = folder / "router.log"
    argv = [sys.executable, "-m", "narwhal.cli.serve", "--fleet", str(fleet), "--state-dir", str(folder / "state")]
    with log.open("wb") as file:
        process = subprocess.Popen(argv, stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=more.pop("env", None))
    return Router(process, port, admin_port, folder / "state", log, **more)


@contextlib.contextmanager
def routing(
    folder: Path,
    engines: list[FakeEngine],
    *,
    wait: bool = True,
    token: str = "",
    admin_socket: Path | None = None,
    **options: Any,
) -> Iterator[Router]:
    """A ready router in front of these engines; the first half of them holds prefill."""
    fleet, port, admin_port = write_fleet(folder, [engine.port for engine in engines], **options)
    router = start_router(folder, fleet, port, admin_port, token=token, given_socket=admin_socket)
    try:
        if wait:
            eventually(router.ready, "the router's readiness")
            engines_live = lambda: all(e["state"] == "live" for e in router.state()["engines"])  # noqa: E731
            eventually(engines_live, "the engines' life")
        yield router
    finally:
        router.stop()


def post(body: object, path: str = "/v1/completions", version: str = "1.1", extra: str = "") -> bytes:
    """The bytes of a request."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nHost: x\r\nContent-Type: application/json\r\n{extra}"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data


def read_until(sock: socket.socket, mark: bytes) -> bytes:
    """Everything up to a mark, or to the end of the connection."""
    data = b""
    while mark not in data:
        piece = sock.recv(65536)
        if not piece:
            break
        data += piece
    return data


def read_all(sock: socket.socket) -> bytes:
    """Everything until the router closes."""
    pieces = []
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(1 << 20):
            pieces.append(piece)
    return b"".join(pieces)
