"""A hundred times what the engines can serve: how fast we refuse, what it costs in memory, whether the rest is served.

The engines are simulated processes at half the speed of the profile `demo`, one prefill, one decode: slow, so that a
hundred times what they can serve is still a load that the machine can make. Only prefill limits it, so what they can
serve is known from the profile.
"""

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import processes
from routers import answers, serve_argv
from scenes import Figure, Goal, Sample, Solo, Stage
from tools import BUILD, Load, ToolError

from narwhal.dev.ports import free_run
from narwhal.engine.launch import simulated_argv
from narwhal.fleet import load_profile, open_fleet

FACTOR = 100
SECONDS = 20.0
BODY_BYTES = 2000
PROMPT_TOKENS = 450
"""About what the simulated tokenizer makes of such a body: fixes the offered rate, nothing else."""
TOKENS = 16
SPEED = 0.5
SLO_TTFT_S, SLO_TPOT_S = 3.0, 0.2
FLEET = """\
apiVersion: narwhal/v1
kind: Fleet
metadata: {{name: overload}}
model: {{name: mock, path: /models/mock}}
slo: {{ttft_s: {ttft}, tpot_s: {tpot}}}
hosts: [{{name: local}}]
engines:
  runtime: {{kind: simulated, profile: demo, speed: {speed}}}
  per_host: 2
  max_model_len: 8192
  max_num_seqs: 16
  port_base: {engines}
  side_channel_port_base: {side}
split: {{prefill: 1, decode: 1}}
routers: {{primary: local, port: {port}, admin: {{port: {admin}}}}}
"""


@contextlib.contextmanager
def _fleet() -> "Iterator[tuple[int, int]]":
    """A router in front of two simulated engines; its port and its process id."""
    folder = Path(tempfile.mkdtemp(prefix="bench-router-"))
    started: list[subprocess.Popen[bytes]] = []
    port = free_run(6)
    path = folder / "fleet.yaml"
    ports = {"port": port, "admin": port + 1, "engines": port + 2, "side": port + 4}
    path.write_text(FLEET.format(ttft=SLO_TTFT_S, tpot=SLO_TPOT_S, speed=SPEED, **ports))
    logs = BUILD / "logs"
    try:
        expanded = open_fleet(path)
        for engine in expanded.engines:  # one by one: what has started ends even if the next does not start
            process = processes.start(simulated_argv(expanded, engine), logs / f"engine-{engine.index}.log")
            started.append(process)
        for engine in expanded.engines:
            _wait(f"{engine.url}/health")
        router = processes.start(serve_argv(path, folder), logs / "overload.log")
        started.append(router)
        _wait(f"http://127.0.0.1:{port}/ready")
        yield port, router.pid
    finally:
        for process in reversed(started):
            processes.end(process)
        shutil.rmtree(folder, ignore_errors=True)


def _wait(url: str) -> None:
    if not processes.eventually(lambda: answers(url)):
        raise ToolError(f"{url} does not answer; logs are in {BUILD / 'logs'}")


def offered_rps() -> float:
    """A hundred times the prompts a second that the prefill engine can serve."""
    prefill = load_profile("demo").prefill
    each_s = prefill.a_s + prefill.b_s_per_token * PROMPT_TOKENS + prefill.c_s_per_token2 * PROMPT_TOKENS**2
    return FACTOR * SPEED / max(each_s, prefill.t_min_s)


def _overload(stage: Stage) -> Sample:
    """Open loop; every client that is let in wants sixteen tokens, streamed."""
    rate = offered_rps()
    with _fleet() as (port, pid):
        targets = {"ttft_ms": SLO_TTFT_S * 1e3, "tpot_ms": SLO_TPOT_S * 1e3}
        common = {"stream": True, "plain": True, "tokens": TOKENS, "body": BODY_BYTES, **targets}
        Load(port, connections=2, requests=10, **common).result()
        before = most = processes.pss_bytes(pid)
        running = Load(port, connections=4096, requests=round(rate * SECONDS), rate=rate, seconds=SECONDS, **common)
        while running.running:
            most = max(most, processes.pss_bytes(pid))
            time.sleep(0.25)
        seen = running.result()
    if seen.dropped:
        raise ToolError(f"the load generator could not keep its rate: {seen.dropped} requests were not sent")
    admitted = seen.ok + seen.failed + seen.unfinished
    if not admitted or not seen.refused:
        raise ToolError(f"{seen.refused} requests were refused and {admitted} admitted: this was no overload")
    return {
        "refusal_p50": seen.refusal_ms.p50,
        "refusal_p99": seen.refusal_ms.p99,
        "memory": (most - before) / 1e6,
        "within": seen.within / admitted,
        "admitted": admitted / SECONDS,
    }


_NAME = f"{FACTOR}x overload"
SOLOS = (
    Solo(
        (
            Figure("refusal_p50", f"{_NAME}: a refusal takes, p50", "ms", Goal(ours=10.0), peers=False),
            Figure("refusal_p99", f"{_NAME}: a refusal takes, p99", "ms", Goal(ours=10.0), peers=False),
            Figure("memory", f"{_NAME}: growth of memory", "MB", Goal(ours=64.0), peers=False, fold="max"),
            Figure("within", f"{_NAME}: share of admitted within SLO", "", Goal(ours=0.9, at_least=True), peers=False),
            Figure("admitted", f"{_NAME}: admitted", "req/s", peers=False),
        ),
        _overload,
    ),
)
