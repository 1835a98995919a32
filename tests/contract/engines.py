"""A plain client for an engine that is a process of its own, whatever kind it is."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE_S, START_PATIENCE_S = 300.0, 900.0
"""How long anything, and the start of vLLM, may take on a slow machine."""
MODEL = "contract"


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The events of a stream, parsed; [DONE] is checked and left out."""
        lines = [line[6:] for line in self.body.decode().split("\n\n") if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]


@dataclass(frozen=True)
class Facts:
    """What differs between kinds of engines by nature."""

    name: str
    block_tokens: int
    capacity_tokens: int
    """Longest prompt plus output; the KV cache holds little more."""
    kv_bytes_per_token: int
    most_logprobs: int
    brief_lease_s: float
    """Lease of the pair that keeps handoffs for a short time."""


@dataclass
class Engine:
    process: "subprocess.Popen[bytes]"
    port: int
    side_channel_port: int
    log: Path
    kind: "Facts"
    model: str = MODEL

    def send(
        self, path: str, body: object = None, *, method: str | None = None, timeout_s: float = PATIENCE_S
    ) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        with contextlib.closing(connection):
            method = method or ("GET" if body is None else "POST")
            connection.request(method, path, data, {"content-type": "application/json"})
            response = connection.getresponse()
            return Reply(response.status, {key.lower(): value for key, value in response.getheaders()}, response.read())

    def complete(self, prompt: object, max_tokens: int = 8, **more: object) -> Reply:
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}
        return self.send("/v1/completions", body)

    def tokens(self, prompt: object, max_tokens: int = 8, **more: object) -> list[int]:
        reply = self.complete(prompt, max_tokens, return_token_ids=True, **more)
        assert reply.status == 200, reply.body
        return list(reply.json()["choices"][0]["token_ids"])

    def leg_1(self, prompt: object, **more: object) -> dict[str, Any]:
        reply = self.complete(prompt, 1, kv_transfer_params={"do_remote_decode": True}, **more)
        assert reply.status == 200, reply.body
        params: dict[str, Any] = reply.json()["kv_transfer_params"]
        return params

    def metric(self, name: str, **labels: str) -> float:
        """The value of a metric: the sum of its samples that have these labels."""
        total = 0.0
        for line in self.send("/metrics").body.decode().splitlines():
            named = line.startswith((f"{name}{{", f"{name} "))
            if named and all(f'{key}="{value}"' in line for key, value in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def eventually(self, met: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Wait until something holds, for as long as a slow machine may need."""
        until_t = time.monotonic() + patience_s
        while not met():
            assert time.monotonic() < until_t, "it never came to hold"
            time.sleep(0.02)

    def usage(self) -> float:
        """Share of its KV cache that is in use."""
        return self.metric("vllm:kv_cache_usage_perc")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """To all its processes: each engine is started as a session of its own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class Streaming:
    """A stream in progress."""

    def __init__(self, engine: Engine, prompt: list[int], max_tokens: int, **more: object) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=PATIENCE_S)
        body = {"prompt": prompt, "max_tokens": max_tokens, "stream": True, "return_token_ids": True, **more}
        data = json.dumps({"temperature": 0, **body}).encode()
        self._connection.request("POST", "/v1/completions", data, {"content-type": "application/json"})
        self._response = self._connection.getresponse()
        self._read = b""
        assert self._response.status == 200

    def __enter__(self) -> "Streaming":
        return self

    def __exit__(self, *error: object) -> None:
        self._response.close()
        self._connection.close()

    def first_token(self) -> None:
        """Wait for it."""
        self._read = self._response.readline()

    def tokens(self) -> list[int]:
        """All tokens, when the stream has ended."""
        lines = (self._read + self._response.read()).splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
        return [token for event in events for token in event["choices"][0]["token_ids"]]


StartEngine = Callable[..., Engine]
FreshPrompt = Callable[[int], list[int]]
