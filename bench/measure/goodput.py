"""Goodput of two simulated engines as real processes, beside what `narwhal simulate` predicts for them.

    python bench/measure/goodput.py [--seconds 60] [--busy]

One trace, one fleet file, one seed: `narwhal simulate --goodput` searches in simulation, then `narwhal bench --goodput`
between three and five quarters of that rate, on a fleet of its own. Both leave the first 30 s unscored. Prints one JSON
line with both rates and their ratio (goal: within 15 %). Needs two free cores: on a busy machine points are invalid,
and it says so; with `--busy` they count as long as the load was not late by more than 100 ms (try `nice -n -15`).
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from narwhal.dev import ends_like_ctrl_c, free_run

_UNSCORED_S = 30.0
_RATE_RPS = 8.0


def _narwhal(*argv: str) -> dict[str, Any]:
    """A verb's data. Ends the program with what it said when it failed."""
    command = [sys.executable, "-m", "narwhal", *argv, "--format", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    result = json.loads(done.stdout or "{}")
    if done.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(command)}: {json.dumps(result.get('errors'))}")
    data: dict[str, Any] = result["data"]
    return data


def _write_trace(path: Path, seconds: float) -> None:
    """Requests of a size that two engines serve several of a second, in Mooncake's format."""
    rng = random.Random(1)
    lines, t_s = [], 0.0
    while t_s < seconds + 1:
        row = {"timestamp": 1000 * t_s, "input_length": rng.randint(100, 500), "output_length": rng.randint(20, 60)}
        lines.append(json.dumps(row))
        t_s += rng.expovariate(_RATE_RPS)
    path.write_text("\n".join(lines) + "\n")


def _declare(folder: Path, trace: Path, seconds: float, predicted_rps: float, *, busy: bool) -> Path:
    point = {
        "name": "two-engines",
        "traffic": {"kind": "trace", "path": str(trace), "rate_rps": predicted_rps},
        "warmup_s": _UNSCORED_S,
        "duration_s": seconds,
        "search": {"low_rps": 0.75 * predicted_rps, "high_rps": 1.25 * predicted_rps, "precision": 0.05},
    }
    document = {"apiVersion": "narwhal/v1", "kind": "Benchmark", "metadata": {"name": "goodput"}, "points": [point]}
    document["validity"] = {"lag_p99_s": 0.1, "waited_share": 1.0, "stall_s": 2.0} if busy else {}
    path = folder / "bench.yaml"
    path.write_text(json.dumps(document))
    return path


def _compare(folder: Path, seconds: float, *, busy: bool) -> dict[str, Any]:
    home = str(folder / "dev")
    _narwhal("dev", "init", "--template", "simulated", "--engines", "2", "--port", str(free_run(1)), "--dir", home)
    fleet, trace = f"{home}/fleet.yaml", folder / "trace.jsonl"
    _write_trace(trace, seconds + _UNSCORED_S)
    asked = ("--trace", str(trace), "--policy", "static", "--seeds", "1", "--goodput")
    predicted_rps = _narwhal("simulate", fleet, *asked)["policies"]["static"]["goodput_rps"]
    points = _declare(folder, trace, seconds, predicted_rps, busy=busy)
    try:
        _narwhal("dev", "up", "--dir", home)
        out = str(folder / "out")
        data = _narwhal("bench", fleet, "--points", str(points), "--out", out, "--goodput")
    finally:
        _narwhal("dev", "down", "--dir", home)
    (search,) = data["searches"]
    measured_rps = search["goodput_rps"]
    return {
        "predicted_rps": round(predicted_rps, 3),
        "measured_rps": measured_rps,
        "above_rps": search["above_rps"],
        "ratio": None if measured_rps is None else round(measured_rps / predicted_rps, 3),
        "load_1m": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="scored seconds of each rate")
    parser.add_argument("--busy", action="store_true", help="count figures of a machine that does other things too")
    options = parser.parse_args()
    with ends_like_ctrl_c(), tempfile.TemporaryDirectory() as folder:
        print(json.dumps(_compare(Path(folder), options.seconds, busy=options.busy)))


if __name__ == "__main__":
    main()
