"""What a tick of the live page costs the router's loop: `python bench/control/live_cost.py [residents] [engines]`.

The control of `snapshot_cost.py`, with 256 decisions and changes kept. CPU time of the thread, so that other work on
the machine does not count. The parts are made once for all viewers; what is sent to one more is timed apart.
"""

import asyncio
import gc
import sys
import time
from statistics import median
from unittest.mock import Mock

from snapshot_cost import busy

from narwhal.control.records import Candidate, Decision, Guard, Move
from narwhal.router.journal import Journal
from narwhal.router.live import Live
from narwhal.router.metrics import Metrics
from narwhal.router.rows import ChangeRow
from narwhal.router.shell import DECISIONS_KEPT, Shell
from narwhal.router.state import router_state

ROUNDS = 200


def kept_decision(number: int) -> Decision:
    """A decision as a fleet in motion makes them."""
    row = Candidate(4, 4, 1.2, 0.8, 0.4, 1.2)
    guards = tuple(Guard(name, False, 1.0, 2.0) for name in ("cooldown_s", "gain", "confirmations"))
    moves = (Move("gpu-0/0", "prefill", "decode"),)
    outcome = ("moved", "held", "stay")[number % 3]
    reason = "decode is at 1.30 of its target with 4p4d, 0.87 with 3p5d"
    inputs = {f"input_{n}": 0.5 for n in range(8)}
    return Decision(number, 1.0, "step", "projection", 4, 4, outcome, reason, (row,) * 3, guards, moves, inputs)


def main() -> None:
    """Print what a tick costs, and what one more viewer does."""
    residents = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    engines = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    control = busy(residents, engines)
    loop = asyncio.new_event_loop()
    shell = Shell(control.settings, loop, Journal(None), Metrics())
    shell.control = control
    for number in range(DECISIONS_KEPT):
        shell.decisions.append(kept_decision(number))
        shell.changes.append(ChangeRow(1.0, "gpu-0/0", "ejected", "no answer within 3 s"))
    live = Live(shell, lambda: {**router_state(shell, "fleet", "model", {}, 0.0), "lease": None})
    gc.freeze()  # the collector is set as in the router
    gc.set_threshold(50_000, 20, 100)
    tick_ms = []
    for _ in range(ROUNDS):
        begin = time.thread_time()
        made = live.parts(shell.now())
        tick_ms.append((time.thread_time() - begin) * 1000)
    for _ in range(2):
        live.serve(Mock(slow=False), Mock(headers={}, http10=False, method="GET"))
    begin = time.thread_time()
    for _ in range(ROUNDS):
        live.send(made)
    send_us = (time.thread_time() - begin) * 1e6 / ROUNDS / 2
    sizes = ", ".join(f"{name} {len(event) / 1000:.1f} kB" for name, event in made.items())
    print(
        f"{len(control.pool.requests)} residents, {engines} engines: {sizes}\n"
        f"a tick: median {median(tick_ms):.2f} ms, max {max(tick_ms):.2f} ms\n"
        f"for each viewer: {send_us:.0f} us at most"
    )


if __name__ == "__main__":
    main()
