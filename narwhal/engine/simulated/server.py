"""The server: routes requests, answers the small ones itself, and runs the process from start to SIGTERM."""

import asyncio
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

import msgspec
import uvloop

from narwhal.engine.notify import notify, watchdog_s
from narwhal.engine.simulated.answer import Answer, Reader
from narwhal.engine.simulated.asked import (
    ApiError,
    EngineKilledError,
    check_model,
    parse_ask,
    parse_body,
    parse_source,
    render_chat,
)
from narwhal.engine.simulated.engine import SimulatedEngine
from narwhal.engine.simulated.faults import Fault
from narwhal.engine.simulated.http import Connection, HttpRequest
from narwhal.engine.simulated.replies import json_encode
from narwhal.engine.simulated.responses import Translator, as_chat
from narwhal.engine.simulated.settings import Settings, SettingsError
from narwhal.engine.simulated.tokenizer import decode, encode

VERSION = "0.32.0"
"""Version of vLLM whose dialect this is."""
_BUSY = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
)
_FLUSH_S = 1.0
Handler = Callable[[Connection, HttpRequest], None]


class Server:
    """Everything that the engine answers over HTTP."""

    def __init__(self, settings: Settings, engine: SimulatedEngine) -> None:
        self.settings = settings
        self.engine = engine
        self.draining = False
        self.connections: set[Connection] = set()
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.get_running_loop()
        self._created_s = int(time.time())
        self._routes: dict[str, dict[str, Handler]] = {
            "/health": {"GET": self._empty},
            "/ping": {"GET": self._empty, "POST": self._empty},
            "/version": {"GET": self._version},
            "/load": {"GET": self._load},
            "/metrics": {"GET": self._metrics},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/v1/completions": {"POST": self._generate},
            "/v1/chat/completions": {"POST": self._generate},
            "/v1/responses": {"POST": self._respond},
            "/simulate/faults": {"GET": self._show_faults, "POST": self._add_fault, "DELETE": self._clear_faults},
        }

    async def listen(self) -> int:
        """Listen, and return the port. Raises `OSError`."""
        self._listener = await self._loop.create_server(
            lambda: Connection(self.handle, self.connections, self.settings.keep_alive_s),
            self.settings.host,
            self.settings.port,
            backlog=2048,
        )
        return int(self._listener.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening; connections end when what was written to them is out, or after a second."""
        if self._listener is not None:
            self._listener.close()
        connections = list(self.connections)
        for connection in connections:
            connection.close()
        if connections:
            await asyncio.wait([connection.lost for connection in connections], timeout=_FLUSH_S)

    def handle(self, connection: Connection, request: HttpRequest) -> None:
        """Answer a request, now or over time. A hung engine looks again later."""
        if connection.closed:
            return
        if self.engine.hung() and request.path != "/simulate/faults":
            self._loop.call_later(0.1, self.handle, connection, request)
            return
        methods = self._routes.get(request.path)
        if methods is None:
            connection.reply(404, b'{"detail":"Not Found"}')
        elif request.method not in methods:
            connection.reply(405, b'{"detail":"Method Not Allowed"}')
        else:
            try:
                methods[request.method](connection, request)
            except ApiError as error:
                connection.reply(error.status, error.body)

    # --- generation

    def _generate(self, connection: Connection, request: HttpRequest) -> None:
        engine, settings = self.engine, self.settings
        body = parse_body(request.body, request.headers.get("content-type", "application/json"))
        try:
            source = parse_source(body)
        except EngineKilledError:
            self._die(connection)
            return
        try:
            asked = parse_ask(body, chat="chat" in request.path, settings=settings, source=source)
            self._check_capacity(asked.leg)
        except ApiError:
            if source is not None:
                engine.refuse_kv(source)
            raise
        request_id = self._request_id(connection, request)
        self._start(Answer(asked, request_id, engine, connection), connection)

    def _respond(self, connection: Connection, request: HttpRequest) -> None:
        body = parse_body(request.body, request.headers.get("content-type", "application/json"))
        asked = parse_ask(as_chat(body), chat=True, settings=self.settings, source=None)
        self._check_capacity(None)
        request_id = self._request_id(connection, request)
        reader: Reader = Translator(connection, request_id, self.settings.model)
        self._start(Answer(asked, request_id, self.engine, reader), connection)

    def _start(self, answer: Answer, connection: Connection) -> None:
        connection.client = answer
        answer.start()

    def _request_id(self, connection: Connection, request: HttpRequest) -> str:
        request_id = request.headers.get("x-request-id") or uuid.uuid4().hex
        if self.settings.request_id_headers:
            connection.extra_headers = b"x-request-id: " + request_id.encode("latin-1") + b"\r\n"
        return request_id

    def _check_capacity(self, leg: int | None) -> None:
        now = self._loop.time()
        faults = self.engine.faults
        if self.draining:
            raise ApiError(500, "cannot schedule new futures after shutdown")
        fault = faults.strike(now, "status", leg=leg)
        if fault is not None:
            raise ApiError(fault.code, "Internal server error" if fault.code >= 500 else "fault: status")
        most = self.settings.max_num_queued_reqs
        full = most is not None and self.engine.request_count >= most
        if full or faults.strike(now, "refuse"):
            self.engine.metrics.rejections += 1
            raise ApiError(503, _BUSY)

    def _die(self, connection: Connection) -> None:
        """What vLLM 0.32 does with `{"do_remote_prefill": true}` alone: one 500, and the engine is gone."""
        connection.reply(500, ApiError(500, "Internal server error").body)
        sys.stderr.write("AssertionError: do_remote_prefill without the KV's place\n")
        self._loop.call_later(0.05, os._exit, 1)

    # --- small answers

    def _empty(self, connection: Connection, request: HttpRequest) -> None:
        connection.reply(200, b"")

    def _version(self, connection: Connection, request: HttpRequest) -> None:
        connection.reply(200, json_encode({"version": VERSION}))

    def _load(self, connection: Connection, request: HttpRequest) -> None:
        connection.reply(200, b'{"server_load":0}')

    def _metrics(self, connection: Connection, request: HttpRequest) -> None:
        kind = b"text/plain; version=0.0.4; charset=utf-8"
        connection.reply(200, self.engine.metrics_page().encode(), kind)

    def _models(self, connection: Connection, request: HttpRequest) -> None:
        models: list[dict[str, object]] = [
            {
                "id": name,
                "object": "model",
                "created": self._created_s,
                "owned_by": "vllm",
                "root": self.settings.model,
                "parent": None,
                "max_model_len": self.settings.max_model_len,
                "permission": [],
            }
            for name in self.settings.names
        ]
        connection.reply(200, json_encode({"object": "list", "data": models}))

    def _tokenize(self, connection: Connection, request: HttpRequest) -> None:
        body = parse_body(request.body, request.headers.get("content-type", "application/json"))
        check_model(body, self.settings)
        prompt = body.get("prompt")
        text = prompt if isinstance(prompt, str) else render_chat(body.get("messages"), body.get("tools"))
        tokens = encode(text)
        answer = {"count": len(tokens), "max_model_len": self.settings.max_model_len, "tokens": tokens}
        connection.reply(200, json_encode({**answer, "token_strs": None}))

    def _detokenize(self, connection: Connection, request: HttpRequest) -> None:
        body = parse_body(request.body, request.headers.get("content-type", "application/json"))
        check_model(body, self.settings)
        try:
            text = decode(body["tokens"])
        except (KeyError, TypeError, IndexError):
            raise ApiError(400, "tokens must be a list of token ids in the vocabulary", "tokens") from None
        connection.reply(200, json_encode({"prompt": text}))

    # --- faults

    def _show_faults(self, connection: Connection, request: HttpRequest) -> None:
        connection.reply(200, json_encode({"faults": self.engine.faults.active(self._loop.time())}))

    def _add_fault(self, connection: Connection, request: HttpRequest) -> None:
        self.engine.add_fault(parse_fault(request.body))
        self._show_faults(connection, request)

    def _clear_faults(self, connection: Connection, request: HttpRequest) -> None:
        self.engine.clear_faults()
        self._show_faults(connection, request)


def parse_fault(data: bytes | str) -> Fault:
    """A fault from JSON. Raises `ApiError`."""
    try:
        return msgspec.json.decode(data, type=Fault)
    except msgspec.DecodeError as error:
        raise ApiError(400, f"not a fault: {error}") from None


async def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises `SettingsError` and `OSError` when it cannot start."""
    settings.check()
    loop = asyncio.get_running_loop()
    engine = SimulatedEngine(settings)
    for text in settings.faults:
        try:
            engine.add_fault(parse_fault(text))
        except ApiError as error:
            raise SettingsError(f"--fault {text}: {error}") from None
    server = Server(settings, engine)
    asked_to_stop: asyncio.Future[int] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _settle, asked_to_stop, number)
    await engine.start()
    try:
        port = await server.listen()
        sys.stderr.write(
            f"simulated engine {engine.engine_id} on http://{settings.host}:{port} "
            f"side channel {engine.side_channel_port} pid {os.getpid()}\n"
        )
        sys.stderr.flush()
        notify("READY=1")
        _turn(loop, watchdog_s(os.environ))
        if await asked_to_stop == signal.SIGTERM:
            server.draining = True
            with suppress(TimeoutError):
                await asyncio.wait_for(engine.idle.wait(), settings.shutdown_timeout_s)
    finally:
        await server.close()
        engine.close()


def _turn(loop: asyncio.AbstractEventLoop, interval_s: float | None) -> None:
    """Tell systemd again and again that the loop turns, when it waits for that."""
    if interval_s is not None:
        notify("WATCHDOG=1")
        loop.call_later(interval_s, _turn, loop, interval_s)


def _settle(future: asyncio.Future[int], number: int) -> None:
    if not future.done():
        future.set_result(number)


def serve(settings: Settings) -> None:
    """Run the engine in this process, until SIGTERM or SIGINT. Raises `SettingsError` and `OSError`."""
    uvloop.run(run(settings))
