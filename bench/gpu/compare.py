"""The simulator against the H200: the requests of `run.py pair`, replayed on the profile that was measured there.

    python bench/gpu/compare.py PAIR_JSON

Prints, for each rate, measured and simulated TTFT and TPOT and their ratio. Goals: p50 within 15 %, p90 within 25 %.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from narwhal.control import Curves
from narwhal.fleet import Profile
from narwhal.simulate import Ask as SimulateAsk
from narwhal.simulate import Prepared, Simulation, Workload, prepare
from narwhal.simulate.policies import parse_policy
from narwhal.simulate.scenario import simulation


def quantile(values: list[float], share: float) -> float:
    """A quantile of some values."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def simulated(prepared: Prepared, requests: list[dict[str, Any]], *, shared: bool) -> Simulation:
    """The same requests at the same moments in the simulator; `shared`: both engines are on one card."""
    workload = Workload(
        name="h200",
        times_s=[r["t_s"] for r in requests],
        prompts=[r["prompt_tokens"] for r in requests],
        outputs=[r["max_tokens"] for r in requests],
        classes=[r["kind"] for r in requests],
        seconds=max(r["t_s"] for r in requests) + 1.0,
    )
    engines = tuple(replace(engine, device="gpu:0" if shared else "") for engine in prepared.scenario.engines)
    scenario = replace(prepared.scenario, engines=engines, traffic=lambda rate_rps, seed: workload)
    sim = simulation(scenario, parse_policy("static:1p1d"), 1.0, 1)
    sim.run()
    return sim


def main(path: Path) -> None:
    """Compare and print."""
    found = json.loads(path.read_text())
    profile = Profile.model_validate(found["profile"]["data"]["profiles"][0])
    curves_path = path.with_name("curves.json")
    curves_path.write_text(profile.model_dump_json(by_alias=True))
    print("curves:", Curves.from_profile(profile))
    ask = SimulateAsk(
        mix="steady:conv", seconds=60.0, curves=str(curves_path), engines=2, split="1p1d", admission="open"
    )
    prepared = prepare(ask)
    print("| req/s | figure | H200 | simulated | ratio |\n|---|---|---|---|---|")
    for rate, requests in found["rates"].items():
        served = [r for r in requests if r["result"] == "served"]
        sim = simulated(prepared, requests, shared=found.get("gpus", 1) == 1)
        done = [r for r in sim.requests if r.outcome == "served"]
        for name, ours, theirs in (
            ("TTFT", [r["ttft_s"] for r in served], [r.ttft_s for r in done]),
            ("TPOT", [r["tpot_s"] for r in served if r["tpot_s"]], [r.tpot_s for r in done if r.total_tokens > 1]),
        ):
            for label, share in (("p50", 0.5), ("p90", 0.9)):
                real, model = quantile(ours, share), quantile(theirs, share)
                print(f"| {rate} | {name} {label} | {real * 1e3:.2f} ms | {model * 1e3:.2f} ms | {model / real:.2f} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
