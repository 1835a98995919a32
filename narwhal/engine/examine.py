"""Examining an engine that has just been started: does it serve what its launch record says, and with which cache?"""

import hashlib
import http.client
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from narwhal.engine.record import EngineLaunch
from narwhal.engine.sidecar import Attester, running_packages
from narwhal.engine.starting import read_secret
from narwhal.engine.unit import Unit
from narwhal.engine.vllm import API_KEY

PROMPT = "Narwhals are whales of the Arctic. They"
ANSWER_TOKENS = 8
_CONTRACT = ("version", "connector", "compatibility_hash", "model_digest", "max_model_len")
_CONTRACT_OF_CACHE = ("dtype", "block_tokens", "bytes_per_token", "layout")
_POLL_S = 0.5
_TIMEOUT_S = 120.0


class ExamineError(Exception):
    """The engine does not serve as it should; the message says in what, `next_step` what to do."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.next_step = next_step


@dataclass(frozen=True, slots=True)
class Examined:
    """What an engine was found to be."""

    engine: str
    """Its id in the fleet file."""
    attestation: Mapping[str, Any]
    """Who it is: an `Attestation`."""
    max_num_seqs: int | None
    """Most requests in a batch, as its launch record says; None: its server's default."""
    answer_tokens: int
    """Tokens of each of the two equal answers."""

    def data(self) -> dict[str, Any]:
        """For a command's result."""
        return {
            "engine": self.engine,
            "attestation": dict(self.attestation),
            "fingerprint": fingerprint(self.attestation),
            "max_num_seqs": self.max_num_seqs,
            "answer_tokens": self.answer_tokens,
        }


def examine(launch: EngineLaunch, *, deadline_s: float, unit: Unit | None = None) -> Examined:
    """Wait until the engine is healthy, ask it for one answer twice, and look at its cache. Raises `ExamineError`.

    `unit`: what it runs by; one that does not stay up is not waited for.
    """
    engine = _Asking(launch, unit)
    engine.wait(deadline_s)
    document = launch.model_dump(mode="json", by_alias=True)
    attestation = Attester(document, launch.digest(), lambda: running_packages(document)).attest()
    running = attestation["running_launch_digest"]
    if running not in (None, launch.digest()):
        step = f"restart it: systemctl restart narwhal-engine@{launch.engine.rpartition('/')[2]}"
        raise ExamineError(f"{launch.engine} runs the launch {running}, not {launch.digest()}", step)
    first, second = engine.answer(), engine.answer()
    if first != second:
        step = "see engines.args for what makes it random; handoffs of such an engine cannot be checked"
        raise ExamineError(f"{launch.engine} answers the same prompt greedily in two ways", step)
    return Examined(launch.engine, attestation, _max_num_seqs(launch.argv), first[1])


def fingerprint(attestation: Mapping[str, Any]) -> str:
    """SHA-256, as `sha256:…`, of what two engines must share for their legs to pair: the contract of their KV."""
    terms = {name: attestation[name] for name in _CONTRACT}
    terms["cache"] = {name: attestation["cache"][name] for name in _CONTRACT_OF_CACHE}
    return "sha256:" + hashlib.sha256(json.dumps(terms, sort_keys=True).encode()).hexdigest()


def _max_num_seqs(argv: list[str]) -> int | None:
    for name, value in pairwise(argv):
        if name == "--max-num-seqs" and value.isdigit():
            return int(value)
    return None


class _Asking:
    """The engine's HTTP server, asked from its own host."""

    def __init__(self, launch: EngineLaunch, unit: Unit | None) -> None:
        self._launch = launch
        self._unit = unit

    def wait(self, deadline_s: float) -> None:
        """Until `/health` answers 200."""
        end = time.monotonic() + deadline_s
        step = f"see why: journalctl -u narwhal-engine@{self._launch.engine.rpartition('/')[2]} -n 50"
        while (said := self._health()) is not None:
            if self._unit is not None and (trouble := self._unit.trouble()) is not None:
                raise ExamineError(f"{self._launch.engine} does not stay up: {trouble}", step)
            if time.monotonic() > end:
                raise ExamineError(f"{self._launch.engine} is not healthy after {deadline_s:g} s: {said}", step)
            time.sleep(_POLL_S)

    def answer(self) -> tuple[str, int]:
        """Text and number of tokens of a greedy answer."""
        name = self._launch.model.name
        body = {"model": name, "prompt": PROMPT, "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}
        try:
            status, data = self._ask("POST", "/v1/completions", json.dumps(body))
            found = json.loads(data)
            if status == 200:
                return str(found["choices"][0]["text"]), int(found["usage"]["completion_tokens"])
            said = f"status {status}: {found.get('error', {}).get('message') or found.get('message') or 'no reason'}"
        except (OSError, http.client.HTTPException, ValueError, LookupError, AttributeError) as error:
            said = f"{type(error).__name__}: {error}"
        step = "see its journal; correct model.name or engines.args of the fleet file"
        raise ExamineError(f"{self._launch.engine} does not complete a prompt for {name}: {said}", step)

    def _health(self) -> str | None:
        """Why it is not healthy; None when it is."""
        try:
            status, _ = self._ask("GET", "/health")
        except (OSError, http.client.HTTPException) as error:
            return f"port {self._launch.port}: {error}"
        return None if status == 200 else f"/health answers {status}"

    def _ask(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._launch.host, self._launch.port, timeout=_TIMEOUT_S)
        try:
            connection.request(method, path, body, {"content-type": "application/json"} | self._key())
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _key(self) -> dict[str, str]:
        """The engine's own key, where its launch record gives it one."""
        secret = self._launch.secrets.get(API_KEY)
        key = read_secret(API_KEY, secret, os.environ) if secret else self._launch.environment.get(API_KEY)
        return {"authorization": f"Bearer {key}"} if key else {}
