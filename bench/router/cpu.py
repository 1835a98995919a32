"""CPU of a request and of a chunk: what all threads and processes of a router used, over what passed through it."""

from functools import partial

import processes
from routers import CONTINUED, Running
from scenes import Figure, Goal, Sample, Scene, Stage
from tools import ENGINE_PACE_US, Loaded, ToolError, load

CONNECTIONS = 32


def _measured(router: Running, what: str, **options: float | bool) -> Sample:
    """CPU microseconds for each request, or each chunk, of a load. Raises `ToolError` when any failed."""
    before = processes.cpu_ns(router.pid)
    seen = load(router.port, **options)
    used_s = processes.cpu_since_s(router.pid, before)
    check(router, seen)
    return {what: used_s / (seen.chunks if options.get("stream") else seen.ok) * 1e6}


def check(router: Running, seen: Loaded) -> None:
    """Raise `ToolError` unless every request was served and every token came once and in order."""
    lost = seen.failed + seen.refused + seen.unfinished + seen.out_of_order + seen.dropped
    if lost:
        raise ToolError(
            f"{router.name}: of {seen.ok + lost} requests {seen.failed} failed (last with status {seen.bad_status}), "
            f"{seen.refused} were refused, {seen.unfinished} did not end, {seen.dropped} were not sent, "
            f"{seen.out_of_order} tokens were out of order"
        )


def _request(body: int, count: int, stage: Stage, router: Running) -> Sample:
    stage.mock.set()
    return _measured(router, "request", connections=CONNECTIONS, requests=count, tokens=16, body=body)


def _paced(stage: Stage, router: Running) -> Sample:
    stage.mock.set(pace_us=ENGINE_PACE_US)
    return _measured(router, "paced", stream=True, connections=100, requests=100, tokens=100, ramp=200)


def _in_phase(key: str, stage: Stage, router: Running) -> Sample:
    stage.mock.set(pace_us=ENGINE_PACE_US, in_phase=True)
    return _measured(router, key, stream=True, connections=256, requests=256, tokens=80, ramp=2000)


def _burst(key: str, stage: Stage, router: Running) -> Sample:
    stage.mock.set(burst=200)
    return _measured(router, key, stream=True, connections=CONNECTIONS, requests=2000, tokens=200)


def _requests(label: str, body: int, count: int, ratio: float) -> Scene:
    figure = Figure("request", f"CPU of a two-leg request, {label}", "µs", Goal(ratio))
    return Scene((figure,), partial(_request, body, count))


CHUNK, BURST = "CPU of a chunk, 256 streams in phase", "CPU of a coalesced chunk, bursts of 200"
SCENES = (
    _requests("500 B", 500, 4000, 0.50),
    _requests("8 KB", 8192, 3000, 0.50),
    _requests("60 KB", 61440, 1000, 0.60),
    Scene((Figure("paced", "CPU of a chunk that comes alone, 100 paced streams", "µs", Goal(0.80)),), _paced),
    Scene(
        (
            Figure("in_phase", CHUNK, "µs", Goal(0.80)),
            Figure("in_phase", f"{CHUNK}, continuation on", "µs", Goal(0.90), ours=CONTINUED),
        ),
        partial(_in_phase, "in_phase"),
    ),
    Scene(
        (
            Figure("burst", BURST, "µs", Goal(0.25)),
            Figure("burst", f"{BURST}, continuation on", "µs", Goal(0.35), ours=CONTINUED),
        ),
        partial(_burst, "burst"),
    ),
)
