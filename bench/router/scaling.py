"""How many requests a second a router serves at most, by workers: ours with 1, 2, 4 …, the peer, and a relay in C.

    python bench/router/scaling.py --workers 1 2 4 8 --rounds 3

Needs more cores than processes: the router's workers and the one that decides, the mock engines, and the load
generators. Rounds alternate in random order; the table has medians. The relay (`floor`) shows what the bench itself
can carry: a router near it is limited by the mock engines, not by itself.
"""

import argparse
import contextlib
import os
import random
import statistics
import sys
from functools import partial

import cpu
import peers
import processes
import tools
from routers import OURS, Running, running, shared

GENERATORS, CONNECTIONS = 4, 32
"""Load generators beside each other, and what each keeps open: so many requests are under way."""
say = partial(print, file=sys.stderr, flush=True)


def serve(router: Running, seconds: float, body: int) -> tuple[float, float]:
    """Load a router with all generators; (requests a second, CPU microseconds of the router for each)."""
    options: dict[str, float | bool] = {"connections": CONNECTIONS, "seconds": seconds, "tokens": 16, "body": body}
    before = processes.cpu_ns(router.pid)
    loads = [tools.Load(router.port, **options) for _ in range(GENERATORS)]
    seen = [load.result() for load in loads]
    used_s = processes.cpu_since_s(router.pid, before)
    for each in seen:
        cpu.check(router, each)
    ok = sum(each.ok for each in seen)
    return ok / max(each.seconds for each in seen), used_s / ok * 1e6


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], help="numbers of workers (default 1 2 4)")
    parser.add_argument("--peers", nargs="*", default=[peers.REFERENCE, peers.FLOOR], help="default: vllm-router floor")
    parser.add_argument("--rounds", type=int, default=3, help="alternating rounds (default 3)")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each load lasts (default 4)")
    parser.add_argument("--body", type=int, default=500, help="bytes of a request's body (default 500)")
    options = parser.parse_args()
    names = [OURS if count == 1 else shared(count) for count in options.workers] + options.peers
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    try:
        tools.build()
        with contextlib.ExitStack() as stack:
            mock = stack.enter_context(tools.Mock())
            for number in range(options.rounds):
                for name in random.sample(names, len(names)):
                    with running(name, mock) as router:
                        mock.set()
                        rate, used_us = serve(router, options.seconds, options.body)
                    seen[name].append((rate, used_us))
                    say(f"round {number + 1}, {name}: {rate:.0f} req/s, {used_us:.0f} µs of CPU each")
    except tools.ToolError as error:
        say(f"bench: {error}")
        return 2
    alone = statistics.median(rate for rate, _ in seen[names[0]])
    print(f"| router | req/s | to {names[0]} | CPU of a request, µs |\n|---|---|---|---|")
    for name, samples in seen.items():
        rate, used_us = (statistics.median(column) for column in zip(*samples, strict=True))
        print(f"| {name} | {rate:.0f} | {rate / alone:.2f} | {used_us:.0f} |")
    print(f"\n{options.rounds} rounds; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
