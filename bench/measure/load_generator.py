"""What the load generator costs: 2,000 streams at 20 tokens a second each, from a server that only writes.

    python bench/measure/load_generator.py [--streams 2000] [--seconds 10] [--rounds 3] [--out FOLDER]

The server is the C mock of bench/router, on a core of its own where there are two. The generator, held to one core,
measures it as `narwhal bench` measures a point; one JSON line for each round is printed from that point's evidence.
The generator is fit for a load while its share of a core is well below one and its schedule is kept (lag p99 below
20 ms). On a busy machine `waited_share` says so: the time that the generator was ready and had no core.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import uvloop

from narwhal.fleet.model import Point, Points, RateTraffic, Slo
from narwhal.measure import Measured, Plan, Ran, Target, run_points

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "router"))
import tools

_GAP_S = tools.ENGINE_PACE_US / 1e6


def _points(streams: int, seconds: float, tokens: int) -> Points:
    """As many requests a second as keep `streams` open, each for as long as the warm-up."""
    rate_rps = streams / seconds
    traffic = RateTraffic(kind="rate", arrivals="constant", rate_rps=rate_rps, prompt_tokens=500, output_tokens=tokens)
    point = Point(name="null", traffic=traffic, warmup_s=seconds, duration_s=seconds, drain_s=60)
    return Points(points=[point], slo=Slo(ttft_s=1.0, tpot_s=1.0))


def _measured(streams: int, seconds: float, out: Path) -> Measured:
    tokens = round(seconds / _GAP_S)
    with tools.Mock() as mock:
        mock.set(pace_us=tools.ENGINE_PACE_US)
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(mock.pid, cores[-1:])
        os.sched_setaffinity(0, cores[:1])
        target = Target("127.0.0.1", mock.decode, "mock")
        plan = Plan("load-generator", _points(streams, seconds, tokens), Path(), target, out, admin=None, again=True)
        ran = Ran()
        uvloop.run(run_points(plan, ran, lambda line: print(line, file=sys.stderr)))
        os.sched_setaffinity(0, cores)
    return ran.measured[0]


def _line(measured: Measured) -> str:
    evidence = measured.evidence
    client, figures = evidence.client, evidence.figures
    return json.dumps(
        {
            "streams_max": client.streams_max,
            "served": figures.served,
            "offered": figures.offered,
            "tokens_per_s": round(client.tokens_per_s),
            "cpu_share": round(client.cpu_share, 3),
            "cpu_us_per_token": round(client.cpu_us_per_token or 0.0, 2),
            "waited_share": client.waited_share and round(client.waited_share, 3),
            "tpot_ms_median": round(figures.tpot_s.p50 * 1e3, 2) if figures.tpot_s else None,
            "lag_ms_p99": round(client.lag_p99_s * 1e3, 1),
            "lag_ms_max": round(client.lag_max_s * 1e3, 1),
            "stall_ms_max": round((client.stall_max_s or 0.0) * 1e3, 1),
            "load_1m": evidence.machine.load_1m,
            "verdict": [f"{one.name} {one.outcome}" for one in evidence.verdict.checks if one.outcome != "skipped"],
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, help="keep the evidence here")
    options = parser.parse_args()
    tools.build()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            print(_line(_measured(options.streams, options.seconds, options.out or Path(folder))), flush=True)


if __name__ == "__main__":
    main()
