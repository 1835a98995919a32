"""From a point's traffic to the requests that are sent: rates, traces, mixes, their lengths scaled as it asks."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from narwhal.control.curves import Curves
from narwhal.fleet import Expanded, load_profile
from narwhal.fleet.model import MixTraffic, Point, RateTraffic, TraceTraffic
from narwhal.measure.errors import BenchError
from narwhal.measure.schedule import Planned
from narwhal.simulate import (
    Workload,
    at_rate,
    compressed,
    first_seconds,
    fleet_engines,
    mix_traffic,
    plain_engines,
    plain_settings,
    read_trace,
)


def planned(point: Point, folder: Path, expanded: Expanded | None) -> list[Planned]:
    """The requests of a point, warm-up included, in order of time; equal points give equal requests.

    `folder` is what relative paths are meant from. Raises `BenchError`, `TraceError`, `TrafficError`, `ProfileError`.
    """
    seconds = point.warmup_s + point.duration_s
    traffic = point.traffic
    if isinstance(traffic, RateTraffic):
        requests = _rate(traffic, seconds, point.seed, point.name)
    elif isinstance(traffic, TraceTraffic):
        requests = _scaled(_trace(traffic, folder, seconds, point), traffic)
    else:
        requests = _scaled(_mix(traffic, seconds, point.seed, expanded), traffic)
    if not any(request.t_s >= point.warmup_s for request in requests):
        hint = "raise the rate, or `duration_s`"
        raise BenchError("traffic", f"point {point.name!r}: no request is sent in its {point.duration_s:g} s", hint)
    _fits(point, requests, expanded)
    return requests


def own_rate(point: Point, folder: Path) -> float:
    """The rate that a point's traffic has by itself, per second. Raises `TraceError`."""
    traffic = point.traffic
    if traffic.rate_rps is not None:
        return traffic.rate_rps
    assert isinstance(traffic, TraceTraffic)
    seconds = point.warmup_s + point.duration_s
    return first_seconds(compressed(read_trace(folder / traffic.path), traffic.compress), seconds).rate_rps


def at(point: Point, rate_rps: float) -> Point:
    """The point at another rate."""
    return point.model_copy(update={"traffic": point.traffic.model_copy(update={"rate_rps": rate_rps})})


def _rate(traffic: RateTraffic, seconds: float, seed: int, kind: str) -> list[Planned]:
    clock, lengths = random.Random(seed), random.Random(seed + 1)  # noqa: S311 - reproducible, no secret
    gap = _gaps(traffic, clock)
    requests: list[Planned] = []
    t_s = gap()
    while t_s < seconds:
        prompt, output = (
            max(1, round(mean * lengths.uniform(1 - traffic.spread, 1 + traffic.spread)))
            for mean in (traffic.prompt_tokens, traffic.output_tokens)
        )
        requests.append(Planned(t_s, prompt, output, kind))
        t_s += gap()
    return requests


def _gaps(traffic: RateTraffic, clock: random.Random) -> Callable[[], float]:
    """Draws the seconds between two arrivals."""
    if traffic.arrivals == "constant":
        return lambda: 1 / traffic.rate_rps
    if traffic.arrivals == "poisson":
        return lambda: clock.expovariate(traffic.rate_rps)
    shape = 1 / traffic.cv**2  # of a gamma distribution: mean shape x scale, variance shape x scale^2
    return lambda: clock.gammavariate(shape, 1 / (shape * traffic.rate_rps))


def _trace(traffic: TraceTraffic, folder: Path, seconds: float, point: Point) -> Workload:
    trace = compressed(read_trace(folder / traffic.path), traffic.compress)
    if trace.seconds < seconds:
        text = f"point {point.name!r}: the trace lasts {trace.seconds:.0f} s, and {seconds:g} s are to be sent"
        raise BenchError("traffic", text, "shorten `warmup_s` and `duration_s`, or lower `compress`")
    trace = first_seconds(trace, seconds)
    return trace if traffic.rate_rps is None else at_rate(trace, traffic.rate_rps, point.seed)


def _mix(traffic: MixTraffic, seconds: float, seed: int, expanded: Expanded | None) -> Workload:
    if traffic.curves is None and expanded is not None:
        engines = fleet_engines(expanded)
    else:
        engines = plain_engines(2, Curves.from_profile(load_profile(traffic.curves or "demo")))
    make, _ = mix_traffic(traffic.mix, engines, plain_settings(), seconds, None)
    return make(traffic.rate_rps, seed)


def _scaled(load: Workload, traffic: TraceTraffic | MixTraffic) -> list[Planned]:
    def length(tokens: int, scale: float, most: int | None) -> int:
        return min(max(round(tokens * scale), 1), most or round(tokens * scale) + 1)

    return [
        Planned(
            t_s,
            length(prompt, traffic.prompt_scale, traffic.max_prompt_tokens),
            length(output, traffic.output_scale, traffic.max_output_tokens),
            kind,
        )
        for t_s, prompt, output, kind in zip(load.times_s, load.prompts, load.outputs, load.classes, strict=True)
    ]


def _fits(point: Point, requests: list[Planned], expanded: Expanded | None) -> None:
    """Refuse requests that engines would refuse."""
    room = expanded.fleet.engines.max_model_len if expanded is not None else None
    if room is None:
        return
    longest = max(requests, key=lambda request: request.prompt_tokens + request.max_tokens)
    tokens = longest.prompt_tokens + longest.max_tokens
    if tokens > room:
        text = f"point {point.name!r}: a request has {tokens} tokens, and engines.max_model_len is {room}"
        raise BenchError("traffic", text, "cut it with `max_prompt_tokens` and `max_output_tokens`, or scale lengths")


def with_lengths(requests: list[Planned], length: Callable[[int], int]) -> list[Planned]:
    """The requests with prompts of lengths that can be built."""
    return [replace(request, prompt_tokens=length(request.prompt_tokens)) for request in requests]
