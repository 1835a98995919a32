"""Engines as real processes, and a plain client for them."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK_TOKENS = 16
KV_CAPACITY_TOKENS = 2048
KV_BYTES_PER_TOKEN = 1000
PATIENCE_S = 60.0

PROFILE = {
    "apiVersion": "narwhal/v1",
    "kind": "Profile",
    "name": "contract",
    "source": "invented for the contract tests: quick, and with little room",
    "prefill": {"a_s": 0.002, "b_s_per_token": 0.00001},
    "decode": {"d0_s": 0.005, "d1_s": 0.0, "d2_s": 0.0},
    "transfer": {"t0_s": 0.001, "bandwidth_bytes_per_s": 1e9},
    "kv_bytes_per_token": KV_BYTES_PER_TOKEN,
    "kv_capacity_tokens": KV_CAPACITY_TOKENS,
    "block_tokens": BLOCK_TOKENS,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 2048,
}


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


@dataclass
class Engine:
    process: "subprocess.Popen[bytes]"
    port: int
    log: Path
    model: str = "contract"
    options: dict[str, object] = field(default_factory=dict)

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

    def eventually(self, met: Callable[[], bool]) -> None:
        """Wait until something holds, for as long as a slow machine may need."""
        until_t = time.monotonic() + PATIENCE_S
        while not met():
            assert time.monotonic() < until_t, "it never came to hold"
            time.sleep(0.02)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


class Streaming:
    """A stream in progress."""

    def __init__(self, engine: Engine, prompt: list[int], max_tokens: int, **more: object) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=60)
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


def start_simulated(folder: Path, number: int, options: dict[str, object]) -> Engine:
    profile = folder / "contract.json"
    profile.write_text(json.dumps(PROFILE))
    settings: dict[str, object] = {
        "port": 0,
        "side_channel_port": 0,
        "model": "contract",
        "profile": profile,
        "max_model_len": KV_CAPACITY_TOKENS,
        **options,
    }
    argv = [sys.executable, "-m", "narwhal", "engine", "simulate"]
    for name, value in settings.items():
        argv += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    log = folder / f"engine-{number}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(argv, stderr=file, stdin=subprocess.DEVNULL)
    until_t = time.monotonic() + PATIENCE_S
    while (found := re.search(r"http://[\d.]+:(\d+)", log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until_t, "it never listened"
        time.sleep(0.02)
    return Engine(process, int(found[1]), log, options=settings)


@contextlib.contextmanager
def starting(folder: Path) -> Iterator[StartEngine]:
    """A start function; whatever it started ends at the end."""
    engines: list[Engine] = []

    def start(**options: object) -> Engine:
        engines.append(start_simulated(folder, len(engines), options))
        return engines[-1]

    try:
        yield start
    finally:
        for engine in engines:
            if engine.process.poll() is None:
                engine.go_on()
                engine.kill()
