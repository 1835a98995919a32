"""The kinds of engines that the contract is tested on: each starts engines that the tests reach over HTTP alone."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol

import pytest

from narwhal.dev.ports import free_run
from narwhal.engine.cpu import PACKAGE, CpuEngine, NotInstallableError, prepare
from narwhal.engine.record import write_launch
from narwhal.engine.render import render_launch
from narwhal.fleet import open_fleet
from tests.conftest import NOT_INSTALLABLE
from tests.contract.engines import MODEL, PATIENCE_S, START_PATIENCE_S, Engine, Facts

SIMULATED = Facts(
    "simulated", block_tokens=16, capacity_tokens=2048, kv_bytes_per_token=1000, most_logprobs=300, brief_lease_s=1.5
)
MOST_REQUESTS = 16
VLLM = Facts(
    "vllm", block_tokens=32, capacity_tokens=2048, kv_bytes_per_token=4096, most_logprobs=20, brief_lease_s=8.0
)

PROFILE = {
    "apiVersion": "narwhal/v1",
    "kind": "Profile",
    "name": "contract",
    "source": "invented for the contract tests: quick, and with little room",
    "prefill": {"a_s": 0.002, "b_s_per_token": 0.00001},
    "decode": {"d0_s": 0.005, "d1_s": 0.0, "d2_s": 0.0},
    "transfer": {"t0_s": 0.001, "bandwidth_bytes_per_s": 1e9},
    "kv_bytes_per_token": SIMULATED.kv_bytes_per_token,
    "kv_capacity_tokens": SIMULATED.capacity_tokens,
    "block_tokens": SIMULATED.block_tokens,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 2048,
}


class Kind(Protocol):
    """Where a kind's engines come from. Whatever it starts ends with `close`."""

    facts: Facts

    def pair(self) -> tuple[Engine, Engine]:
        """Two engines that all tests share, and leave healthy."""

    def brief_pair(self) -> tuple[Engine, Engine]:
        """Two healthy engines that keep handoffs for a few seconds only."""

    def victim(self) -> Engine:
        """An engine that a test may end, never the first of the pair.

        It lets streams end for a while after SIGTERM, and takes no more than `MOST_REQUESTS`.
        """

    def again(self, dead: Engine) -> Engine:
        """Start a dead engine anew, on the same ports."""

    def close(self) -> None:
        """End all engines."""


class Simulated:
    """`narwhal engine simulate`: quick to start, so that a test may have its own."""

    facts = SIMULATED

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._engines: list[Engine] = []
        self._shared: dict[float, tuple[Engine, Engine]] = {}

    def start(self, **options: object) -> Engine:
        """An engine with these options."""
        profile = self._folder / "contract.json"
        profile.write_text(json.dumps(PROFILE))
        settings: dict[str, object] = {
            "port": 0,
            "side_channel_port": 0,
            "model": MODEL,
            "profile": profile,
            "max_model_len": self.facts.capacity_tokens,
            **options,
        }
        argv = [sys.executable, "-m", "narwhal", "engine", "simulate"]
        for name, value in settings.items():
            argv += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        log = self._folder / f"engine-{len(self._engines)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(argv, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True)
        until_t = time.monotonic() + PATIENCE_S
        said = re.compile(r"http://[\d.]+:(\d+) side channel (\d+)")
        while (found := said.search(log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until_t, "it never listened"
            time.sleep(0.02)
        self._engines.append(Engine(process, int(found[1]), int(found[2]), log, self.facts))
        return self._engines[-1]

    def pair(self) -> tuple[Engine, Engine]:
        return self._with_lease(30.0)

    def brief_pair(self) -> tuple[Engine, Engine]:
        return self._with_lease(SIMULATED.brief_lease_s)

    def _with_lease(self, lease_s: float) -> tuple[Engine, Engine]:
        if lease_s not in self._shared:
            self._shared[lease_s] = self.start(kv_lease_s=lease_s), self.start(kv_lease_s=lease_s)
        return self._shared[lease_s]

    def victim(self) -> Engine:
        return self.start(shutdown_timeout=60, max_num_queued_reqs=MOST_REQUESTS)

    def again(self, dead: Engine) -> Engine:
        return self.start(port=dead.port, side_channel_port=dead.side_channel_port)

    def close(self) -> None:
        for engine in self._engines:
            if engine.alive:
                engine.kill()


FLEET = """
apiVersion: narwhal/v1
kind: Fleet
metadata: {{name: contract}}
model: {{name: {model}, path: {path}}}
slo: {{ttft_s: 2, tpot_s: 0.1}}
hosts: [{{name: local, engines: 2}}]
engines:
  runtime: {{kind: venv, package: {package}, path: {environment}, device: cpu}}
  max_model_len: {capacity}
  kv_lease_s: {lease_s}
  args: {{block-size: {block}, kv-cache-memory-bytes: {memory}, shutdown-timeout: 60}}
  overrides: {{{overrides}}}
split: {{prefill: 1, decode: 1}}
routers: {{primary: local, port: {router}, admin: {{port: {admin}}}}}
lease: {{backend: file}}
"""


class Vllm:
    """vLLM with NIXL on the CPU, started by `narwhal engine run`.

    A start takes half a minute: tests share two engines, of which one may be ended.
    """

    facts = VLLM

    def __init__(self, folder: Path) -> None:
        try:
            engine = prepare(print)
        except NotInstallableError as error:
            pytest.skip(f"{NOT_INSTALLABLE}{error}")
        self._folder = folder
        self._launches = self._render(engine)
        self._starts = 0
        self._engines = [self._begin(number) for number in range(2)]
        for started in self._engines:
            self._wait(started)

    def _render(self, engine: CpuEngine) -> list[Path]:
        """Launch records of two engines; a block more than the longest request, since vLLM keeps one for itself."""
        first = free_run(6)
        overrides = [
            f"local/{number}: {{port: {first + 2 * number}, side_channel_port: {first + 2 * number + 1}, args: {args}}}"
            for number, args in enumerate(("{}", f"{{max-num-queued-reqs: {MOST_REQUESTS}}}"))
        ]
        fleet = self._folder / "fleet.yaml"
        fleet.write_text(
            FLEET.format(
                model=MODEL,
                path=engine.model,
                package=PACKAGE,
                environment=engine.environment,
                capacity=VLLM.capacity_tokens,
                block=VLLM.block_tokens,
                memory=(VLLM.capacity_tokens + 2 * VLLM.block_tokens) * VLLM.kv_bytes_per_token,
                overrides=", ".join(overrides),
                lease_s=VLLM.brief_lease_s,
                router=first + 4,
                admin=first + 5,
            )
        )
        expanded = open_fleet(fleet)
        paths = []
        for spec in expanded.engines:
            paths.append(self._folder / f"launch-{spec.index}.json")
            write_launch(render_launch(expanded, spec), paths[-1])
        return paths

    def _begin(self, number: int) -> Engine:
        launch = json.loads(self._launches[number].read_text())
        self._starts += 1
        log = self._folder / f"engine-{number}-{self._starts}.log"
        argv = [sys.executable, "-m", "narwhal", "engine", "run", "--launch", str(self._launches[number])]
        with log.open("wb") as file:
            process = subprocess.Popen(argv, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True)
        return Engine(process, launch["port"], launch["side_channel_port"], log, self.facts)

    def _wait(self, engine: Engine) -> None:
        def ready() -> bool:
            assert engine.alive, engine.log.read_text()[-3000:]
            try:
                return engine.send("/health").status == 200
            except OSError:
                return False

        engine.eventually(ready, START_PATIENCE_S)

    def pair(self) -> tuple[Engine, Engine]:
        return self._engines[0], self.victim()

    brief_pair = pair

    def victim(self) -> Engine:
        return self._engines[1] if self._engines[1].alive else self.again(self._engines[1])

    def again(self, dead: Engine) -> Engine:
        dead.kill()  # what is left of it
        self._engines[1] = self._begin(1)
        self._wait(self._engines[1])
        return self._engines[1]

    def close(self) -> None:
        for engine in self._engines:
            engine.kill()


KINDS = {"simulated": Simulated, "vllm": Vllm}
