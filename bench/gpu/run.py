"""Narwhal on real engines that share one H200. Runs there; `README.md` says how it gets there.

    python bench/gpu/run.py serve OUT MODEL     dev fleet of four: up, verify, traffic that turns; it is left running
    python bench/gpu/run.py verify OUT MODEL    the same four: up, verify, down
    python bench/gpu/run.py profile OUT MODEL   a thorough sweep of two engines of that fleet, then down
    python bench/gpu/run.py pair OUT MODEL      one prefill and one decode engine: a trace at three rates
    python bench/gpu/run.py small OUT MODEL     small-cuda: memory of the card while it starts and serves
    python bench/gpu/run.py once OUT MODEL      all that one call of nine minutes holds: pair, then four engines checked
                                                over all twelve pairs, then as much of their sweep as the time allows

Each writes JSON into OUT and prints what it found; a step that fails is in the JSON, and the next ones go on.
`TEMPLATE=cpu ENVIRONMENT=VENV` tries `once` and `pair` out without a GPU, on two engines and with little load.
"""

import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from narwhal.control.curves import Curves
from narwhal.diagnose import AdminClient
from narwhal.fleet import Expanded, Profile, load_profile, open_fleet
from narwhal.measure import Load, Outcome, Phase, Target, poisson, score, time_to_adapt

ENVIRONMENT = os.environ.get("ENVIRONMENT", "/tmp/engine-venv")
TEMPLATE = os.environ.get("TEMPLATE", "h200")
GPUS = int(os.environ.get("GPUS", "1"))
"""Cards that the engines are spread over; the memory of each engine is what it would be on one."""
SEED = 31
ONCE_S = float(os.environ.get("ONCE_S", "500"))
"""What `once` may take; installing and making the model take half a minute before it."""
SWEEP_S = 60.0
"""A sweep of four engines is not worth beginning with less."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of it a template can bear."""

    engines: int
    rates_rps: tuple[float, ...]
    """Of the pair's trace, one after another."""
    seconds: float
    """At each rate."""
    prompt_tokens: int
    output_tokens: int


SCALE = {
    "h200": Scale(4, (2.0, 6.0, 10.0), 40.0, 2048, 128),
    "cpu": Scale(2, (0.5,), 20.0, 200, 16),
    "simulated": Scale(4, (2.0,), 20.0, 200, 16),
}[TEMPLATE]


def narwhal(*arguments: str, timeout_s: float | None = None) -> dict[str, Any]:
    """The CommandResult of a verb; its progress goes to stderr. One that takes longer than it may is stopped."""
    began = time.perf_counter()
    argv = [sys.executable, "-m", "narwhal", *arguments, "--format", "json"]
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False, timeout=timeout_s)
        result: dict[str, Any] = json.loads(done.stdout or "{}")
    except subprocess.TimeoutExpired:
        result = {"status": f"stopped after {timeout_s:.0f} s"}
    took = time.perf_counter() - began
    print(f"narwhal {' '.join(arguments[:3])}: {result.get('status')} in {took:.0f} s", flush=True)
    for error in result.get("errors", []):
        print("   ", error["message"][:600], error.get("hint"), flush=True)
    return result | {"seconds": took}


class Bench:
    """One instance, and the document of what was found."""

    def __init__(self, out: Path, name: str, model: str) -> None:
        self.out, self.name = out, name
        self.folder = Path(f"/tmp/dev-{name}")
        self.path = self.folder / "fleet.yaml"
        self.model = model
        self.found: dict[str, Any] = {"model": model}

    def init(self, template: str, engines: int) -> None:
        """Make the instance."""
        self.found |= {"template": template, "engines": engines, "gpus": GPUS}
        real = () if template == "simulated" else ("--model", self.model, "--environment", ENVIRONMENT)
        made = narwhal(
            "dev",
            "init",
            "--dir",
            str(self.folder),
            "--template",
            template,
            "--engines",
            str(engines),
            *real,
            "--force",
        )
        if made["status"] != "success":
            raise SystemExit(f"init failed: {made['errors']}")
        if template not in (
            "cpu",
            "simulated",
        ):  # the bundle has FlashAttention 3 alone, which vLLM takes when it is named
            text = self.path.read_text().replace("args: {", 'args: {"attention-backend": "FLASH_ATTN", ')
            if GPUS > 1:
                text = text.replace("gpus: 1, ", f"gpus: {GPUS}, ")
                text = text.replace(f"per_gpu: {engines}", f"per_gpu: {-(-engines // GPUS)}")
            self.path.write_text(text)

    def up(self) -> bool:
        """Start it; on failure the ends of the logs are printed."""
        result = self.verb("up")
        if result["status"] != "success":
            for log in sorted((self.folder / "log").glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}", flush=True)
        return bool(result["status"] == "success")

    def verb(self, name: str) -> dict[str, Any]:
        """A dev verb on this instance."""
        result = narwhal("dev", name, "--dir", str(self.folder))
        self.found[name] = {key: result.get(key) for key in ("status", "seconds", "errors", "data")}
        return result

    def fleet(self) -> Expanded:
        """Its fleet."""
        return open_fleet(self.path)

    def profile(self) -> Profile:
        """The profile that `up` or `narwhal profile` wrote."""
        [path] = sorted((self.folder / "profiles").glob("*.json"))[:1]
        return load_profile(str(path))

    def save(self) -> None:
        """Write the document, profiles with their samples, and the logs' ends."""
        (self.out / f"{self.name}.json").write_text(json.dumps(self.found, indent=1, default=str) + "\n")
        kept = ["fleet.yaml", "profiles", "log", "state", "evidence"]
        kept = [name for name in kept if (self.folder / name).exists()]
        subprocess.run(
            ["tar", "-C", str(self.folder), "-cJf", str(self.out / f"{self.name}.tar.xz"), *kept], check=False
        )


def play(expanded: Expanded, phases: Sequence[Phase]) -> list[Outcome]:
    """Play a schedule against the router of a fleet."""
    router = expanded.routers[0]
    load = Load(Target("127.0.0.1", router.port, expanded.fleet.model.name), poisson(phases, SEED), seed=SEED)
    return uvloop.run(load.run())


def records(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One record for each request, with what a simulation of it needs."""
    return [
        {
            "t_s": round(o.planned.t_s, 4),
            "prompt_tokens": o.planned.prompt_tokens,
            "max_tokens": o.planned.max_tokens,
            "kind": o.planned.kind,
            "result": o.result,
            "error": o.error,
            "tokens": o.tokens,
            "ttft_s": o.ttft_s,
            "tpot_s": o.tpot_s,
            "ended_s": o.ended_s,
        }
        for o in outcomes
    ]


def turning(curves: Curves, engines: int, seconds: float) -> list[Phase]:
    """Prefill-heavy, decode-heavy, prefill-heavy: what three of four engines hold, and two do not.

    All engines share the card, so an engine holds less than its own curve says; the rates are half of it.
    """
    long, short = (6000, 16), (256, 400)
    prompts = 0.5 * (engines - 1) / curves.prefill_s(long[0])
    streams = 0.5 * curves.max_num_seqs
    interval_s = curves.interval_s(round(streams), round(streams * (short[0] + short[1] / 2)))
    answers = 0.5 * (engines - 1) * streams / (interval_s * short[1])
    first = Phase("prefill-heavy", seconds / 3, prompts, *long)
    return [first, Phase("decode-heavy", seconds / 3, min(answers, 40.0), *short), first]


def serve(out: Path, model: str, engines: int = 4) -> None:
    """Four engines: up, verify, a turning mix with role moves."""
    bench = Bench(out, "serve", model)
    bench.init("h200", engines)
    if bench.up():
        bench.verb("verify")
        bench.save()
        expanded = bench.fleet()
        phases = turning(Curves.from_profile(bench.profile()), engines, 150.0)
        bench.found["phases"] = [asdict(phase) for phase in phases]
        print("phases:", phases, flush=True)
        outcomes = play(expanded, phases)
        bench.found["score"] = asdict(score(outcomes, expanded.fleet.slo))
        bench.found["adapt_s"] = [
            asdict(time_to_adapt(outcomes, expanded.fleet.slo, turn_s=turn, until_s=turn + 50.0))
            for turn in (50.0, 100.0)
        ]
        admin = AdminClient(f"http://127.0.0.1:{expanded.routers[0].admin_port}")
        bench.found["decisions"] = admin.moves()["moves"]
        bench.found["state"] = admin.state()
        bench.found["requests"] = records(outcomes)
        print("score:", bench.found["score"], "adapt:", bench.found["adapt_s"], flush=True)
        print("moves:", [d["moves"] for d in bench.found["decisions"] if d["outcome"] == "moved"], flush=True)
    bench.save()


def verify(out: Path, model: str) -> None:
    """Four engines: up, and KV over every directed pair."""
    bench = Bench(out, "verify", model)
    bench.init("h200", 4)
    if bench.up():
        bench.verb("verify")
    bench.save()
    bench.verb("down")


def profile(out: Path, model: str) -> None:
    """Two of the four engines that `serve` left, each measured with its three neighbours loaded."""
    bench = Bench(out, "serve", model)
    chosen = ("--engine", "local/0", "--engine", "local/1")
    bench.found["profile"] = narwhal("profile", str(bench.path), "--fresh", *chosen)
    bench.name = "profile"
    bench.save()
    bench.verb("down")


def pair(out: Path, model: str) -> None:
    """One prefill and one decode engine, profiled with the other one loaded, and a trace at three rates."""
    bench = Bench(out, "pair", model)
    bench.init(TEMPLATE, 2)
    bench.path.write_text(bench.path.read_text() + "controller: {enabled: false}\nserving: {admission: open}\n")
    if bench.up():
        bench.found["profile"] = narwhal("profile", str(bench.path), "--fresh")
        bench.save()
        expanded = bench.fleet()
        bench.found["rates"] = {}
        for rate in SCALE.rates_rps:
            phase = Phase("mix", SCALE.seconds, rate, SCALE.prompt_tokens, SCALE.output_tokens, spread=0.9)
            outcomes = play(expanded, [phase])
            bench.found["rates"][str(rate)] = records(outcomes)
            print(rate, asdict(score(outcomes, expanded.fleet.slo)), flush=True)
    bench.save()
    bench.verb("down")


def checked(out: Path, model: str, until_t: float) -> None:
    """All engines: up, preflight over every directed pair with its evidence, then a thorough sweep until `until_t`."""
    bench = Bench(out, "checked", model)
    bench.init(TEMPLATE, SCALE.engines)
    if bench.up():
        bench.found["check"] = narwhal("check", str(bench.path), "--repeats", "3", "--timeout", "60")
        bench.save()
        for row in bench.found["check"].get("data", {}).get("preflight", {}).get("checks", []):
            print(row["status"], row["name"], row["subject"], row["reason"], flush=True)
        left_s = until_t - time.monotonic()
        if left_s > SWEEP_S:  # samples are on the disk one by one, so a sweep that is stopped leaves what it has
            bench.found["profile"] = narwhal("profile", str(bench.path), "--fresh", timeout_s=left_s)
    bench.save()
    bench.verb("down")


def once(out: Path, model: str) -> None:
    """What one call holds. A part that fails is told, and the next goes on."""
    until_t = time.monotonic() + ONCE_S
    parts: list[Callable[[], None]] = [lambda: pair(out, model), lambda: checked(out, model, until_t)]
    for part in parts:
        try:
            part()
        except (Exception, SystemExit):
            traceback.print_exc()
        print(f"{until_t - time.monotonic():.0f} s are left", flush=True)


def small(out: Path, model: str) -> None:
    """small-cuda: never more than 8 GB of the card, while starting, verifying and serving."""
    used: list[int] = []
    over = threading.Event()

    def watch() -> None:
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while not over.wait(0.5):
            used.append(int(subprocess.run(query, capture_output=True, text=True, check=True).stdout))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        bench = Bench(out, "small", model)
        bench.init("small-cuda", 2)
        if bench.up():
            bench.verb("verify")
            expanded = bench.fleet()
            outcomes = play(expanded, [Phase("mix", 20.0, 4.0, 512, 64)])
            bench.found["score"] = asdict(score(outcomes, expanded.fleet.slo))
            print(bench.found["score"], flush=True)
    finally:
        over.set()
        watcher.join()
        bench.found["memory_used_mib"] = {"first": used[:1], "most": max(used, default=None), "samples": len(used)}
        print("memory:", bench.found["memory_used_mib"], flush=True)
        bench.save()
        bench.verb("down")


if __name__ == "__main__":
    verbs = {"serve": serve, "verify": verify, "profile": profile, "pair": pair, "small": small, "once": once}
    verbs[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])
