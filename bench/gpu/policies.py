"""Role policies side by side on real engines, with traffic that turns: four engines, or one for each GPU.

    python bench/gpu/policies.py prepare OUT MODEL   engines up on all GPUs, profiled; they are left running
    python bench/gpu/policies.py rate OUT SHARE      every policy in turn, at this share of what the GPUs hold
    python bench/gpu/policies.py down OUT
    python bench/gpu/policies.py simulate FILE…      the same requests in the simulator, from what `rate` wrote

`GPUS`, `PER_GPU`, `TPOT_S`, `PHASE_S`, `MIX`, `POLICIES` change the run. `TEMPLATE=simulated` tries it without GPUs.
Engines stay as they are between policies; the router is started anew, so each begins with the same split and nothing
learned.
"""

import json
import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import run
from ruamel.yaml import YAML

from narwhal.control.curves import Curves
from narwhal.dev.identity import stop
from narwhal.dev.process import living
from narwhal.diagnose import AdminClient
from narwhal.fleet import Profile, load_profile
from narwhal.measure import Phase, score, time_to_adapt
from narwhal.simulate import Ask as SimulateAsk
from narwhal.simulate import Workload, prepare
from narwhal.simulate.policies import parse_policy
from narwhal.simulate.scenario import simulation

PER_GPU = int(os.environ.get("PER_GPU", "1"))
ENGINES = run.GPUS * PER_GPU
SIMULATED = run.TEMPLATE == "simulated"
TTFT_S = 2.0
TPOT_S = float(os.environ.get("TPOT_S", "0.012" if PER_GPU == 1 else "0.024"))
"""Engines that share a card halve each other's speed when both compute."""
PHASE_S = float(os.environ.get("PHASE_S", "25"))
MIX = json.loads(os.environ.get("MIX", "[[4000, 32], [256, 512]]"))
"""Prompt and answer tokens of the two kinds of traffic, and perhaps requests a second; they take turns, twice."""
STATICS = [f"static:{prefill}p{ENGINES - prefill}d" for prefill in range(1, ENGINES)]
POLICIES = os.environ.get("POLICIES", ",".join(["reactive", "projection", *STATICS])).split(",")


def bench(out: Path, model: str = "") -> run.Bench:
    """The one instance of this run."""
    return run.Bench(out, "policies", model)


def prepare_engines(out: Path, model: str) -> None:
    """Make the fleet over all cards and bring it up."""
    made = bench(out, model)
    made.init(run.TEMPLATE, ENGINES)
    _edit(made.path, {"slo": {"ttft_s": TTFT_S, "tpot_s": TPOT_S}})
    if not made.up():
        made.save()
        raise SystemExit("the engines did not come up")
    made.found["links"] = AdminClient(_admin(made)).links()
    made.save()


def _edit(path: Path, sections: dict[str, Any]) -> None:
    """Replace sections of a fleet file."""
    yaml = YAML()
    document = yaml.load(path.read_text())
    document.update(sections)
    with path.open("w") as file:
        yaml.dump(document, file)


def _admin(made: run.Bench) -> str:
    return f"http://127.0.0.1:{made.fleet().routers[0].admin_port}"


def _curves(made: run.Bench) -> Curves:
    return Curves.from_profile(load_profile("demo") if SIMULATED else made.profile())


def phases(curves: Curves, share: float) -> list[Phase]:
    """Two kinds of traffic by turns, each at this share of what the GPUs hold of it.

    A GPU holds what its seconds allow: a prompt takes its prefill, an answer its tokens' share of the largest batch
    within the TPOT target of an engine that has the GPU alone half of the time.
    """
    found = []
    for name, (prompt, answer, *given) in zip(("prefill-heavy", "decode-heavy"), MIX, strict=True):
        tokens = prompt + answer / 2
        room_s = TPOT_S / PER_GPU - curves.d0_s
        batch = max(1.0, min(room_s / (curves.d1_s + curves.d2_s * tokens), float(curves.max_num_seqs)))
        interval_s = curves.interval_s(round(batch), round(batch * tokens))
        each_s = curves.prefill_s(prompt) + answer * interval_s / batch
        held = given[0] if given else run.GPUS / each_s
        found.append(Phase(name, PHASE_S, share * held, prompt, answer))
    return found * 2


def _restart(made: run.Bench, policy: str) -> None:
    """A router with this policy and nothing remembered; the engines stay."""
    router = living(made.folder / "run").get("router")
    if router is not None:
        stop([router.identity], 30.0)
    for path in sorted((made.folder / "state").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    if policy.startswith("static:"):
        prefill, decode = policy.removeprefix("static:").rstrip("d").split("p")
        controller, split = {"enabled": False}, {"prefill": int(prefill), "decode": int(decode)}
    else:
        split = {"prefill": ENGINES // 2, "decode": ENGINES - ENGINES // 2}
        controller = {"enabled": True, "policy": policy}
    _edit(made.path, {"controller": controller, "split": split})
    if not made.up():
        raise SystemExit(f"the router does not start with {policy}")


def measure(out: Path, share: float) -> None:
    """Every policy with the same requests."""
    made = bench(out)
    plan = phases(_curves(made), share)
    expanded = made.fleet()
    found: dict[str, Any] = {"share": share, "phases": [asdict(p) for p in plan], "tpot_s": TPOT_S, "per_gpu": PER_GPU}
    found |= {"gpus": run.GPUS, "policies": {}}
    if SIMULATED:
        found["profile"] = load_profile("demo").model_dump(mode="json", by_alias=True)
    else:
        found["profile"] = made.profile().model_dump(mode="json", by_alias=True)
    path = out / f"rate-{share}.json"
    print("phases:", plan, flush=True)
    for policy in POLICIES:
        began = time.monotonic()
        _restart(made, policy)
        outcomes = run.play(expanded, plan)
        admin = AdminClient(_admin(made))
        moves = [d for d in admin.moves()["moves"] if d["outcome"] == "moved"]
        turns = [
            asdict(time_to_adapt(outcomes, expanded.fleet.slo, turn_s=turn * PHASE_S, until_s=(turn + 1) * PHASE_S))
            for turn in range(1, len(plan))
        ]
        judged = asdict(score(outcomes, expanded.fleet.slo))
        found["policies"][policy] = {
            "score": judged,
            "adapt": turns,
            "moves": [[d["t"], d["moves"], d["reason"]] for d in moves],
            "links": admin.links(),
            "requests": run.records(outcomes),
        }
        path.write_text(json.dumps(found, default=str) + "\n")
        print(policy, judged, f"{sum(len(d['moves']) for d in moves)} moves", turns, flush=True)
        print(f"   {time.monotonic() - began:.0f} s", flush=True)
    made.save()


def simulate(paths: list[Path]) -> None:
    """What the simulator makes of the same requests, policy by policy."""
    print("| share | policy | attainment | simulated | moves | simulated |\n|---|---|---|---|---|---|")
    for path in paths:
        found = json.loads(path.read_text())
        profile = Profile.model_validate(found["profile"])
        curves_path = path.with_name("curves.json")
        curves_path.write_text(profile.model_dump_json(by_alias=True))
        engines = found["gpus"] * found["per_gpu"]
        ask = SimulateAsk(mix="steady:conv", seconds=60.0, curves=str(curves_path), engines=engines)
        scenario = prepare(ask).scenario
        placed = tuple(
            replace(engine, device=f"gpu:{number // found['per_gpu']}" if found["per_gpu"] > 1 else "")
            for number, engine in enumerate(scenario.engines)
        )
        for policy, real in found["policies"].items():
            requests = real["requests"]
            workload = Workload(
                name="gpu",
                times_s=[r["t_s"] for r in requests],
                prompts=[r["prompt_tokens"] for r in requests],
                outputs=[r["max_tokens"] for r in requests],
                classes=[r["kind"] for r in requests],
                seconds=max(r["t_s"] for r in requests) + 1.0,
            )
            settings = replace(
                scenario.settings, slo=scenario.settings.slo.model_copy(update={"tpot_s": found["tpot_s"]})
            )
            this = replace(scenario, engines=placed, settings=settings, traffic=lambda rate, seed, w=workload: w)
            sim = simulation(this, parse_policy(policy), 1.0, 1)
            sim.run()
            met = sum(
                r.outcome == "served" and r.ttft_s <= TTFT_S and (r.total_tokens < 2 or r.tpot_s <= found["tpot_s"])
                for r in sim.requests
            )
            moves = sum(len(moved) for _, moved, _ in real["moves"])
            print(
                f"| {found['share']} | {policy} | {real['score']['attainment']:.3f} | {met / len(requests):.3f} "
                f"| {moves} | {len(sim.moves)} |"
            )


def main() -> None:
    """One verb."""
    verb, rest = sys.argv[1], sys.argv[2:]
    if verb == "prepare":
        prepare_engines(Path(rest[0]), rest[1])
    elif verb == "rate":
        measure(Path(rest[0]), float(rest[1]))
    elif verb == "down":
        bench(Path(rest[0])).verb("down")
    else:
        simulate([Path(name) for name in rest])


if __name__ == "__main__":
    main()
