"""What a snapshot of control's state costs the loop: `python bench/control/snapshot_cost.py [residents] [engines]`.

Residents in every phase: nine in ten are streams, the others wait for or are in prefill. Demand has the history of two
minutes at `residents` / 20 requests per second. CPU time of the thread, so that other work on the machine does not
count. All pairs of prefill and decode engines have been used. The cut is taken on the router's loop; the journal's
thread makes the line of it, and holds the interpreter no longer than for one piece.
"""

import gc
import sys
import time
from itertools import pairwise
from statistics import median

import msgspec

from narwhal.control import Control, Curves, Settings
from narwhal.control.events import EngineJoined, EngineUp, FirstToken, PrefillFinished, RequestArrived, Tick
from narwhal.control.snapshot import Cut, Snapshot
from narwhal.fleet import load_profile
from narwhal.fleet.model import Controller, Recovery, Serving, Slo

ROUNDS = 30
HISTORY_S = 120


def busy(residents: int, engines: int) -> Control:
    """A control with so many residents."""
    serving = Serving.model_validate({"admission": "open", "queue": {"max_requests": residents}})
    control = Control(Settings(Slo(ttft_s=2.0, tpot_s=0.05), serving, Controller(), Recovery()))
    curves = Curves.from_profile(load_profile("8b-h100"))
    for number in range(engines):
        name = f"gpu-{number}/0"
        control.handle(EngineJoined(0.0, name, "decode" if number % 2 else "prefill", curves, True))
        control.handle(EngineUp(0.0, name, "life-1"))
    rate = residents / 20
    for number in range(int(HISTORY_S * rate)):
        control.demand.arrived(number / rate, 0.06)
        control.demand.entered_decode(number / rate, 0.004)
        control.demand.left_decode(number / rate, 0.006, number / rate - 10.0)
    t = float(HISTORY_S)
    for number in range(residents):
        control.handle(RequestArrived(t, number, 1000 + number % 100, 500))
        if number < 0.9 * residents:  # the rest finds all prefill engines busy before long
            control.handle(PrefillFinished(t, number, 1000 + number % 100, "life-1"))
            control.handle(FirstToken(t, number))
    control.handle(Tick(t))
    for producer in range(0, engines, 2):
        for consumer in range(1, engines, 2):
            link = control.health.links.link(f"gpu-{producer}/0", f"gpu-{consumer}/0")
            link.handoffs, link.tried_t, link.canaries = 9, 1.0, ["right"] * 3
    return control


def main() -> None:
    """Print what is on the loop, and what is beside it."""
    residents = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    engines = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    control = busy(residents, engines)
    gc.freeze()  # the collector is set as in the router
    gc.set_threshold(50_000, 20, 100)
    loop_ms, thread_ms, pieces, follow_ms = [], [], [], []
    for _ in range(ROUNDS):
        begin = time.thread_time()
        cut, settings = Cut(control), control.settings.copy()
        loop_ms.append((time.thread_time() - begin) * 1000)
        marks = [time.thread_time()]
        state = cut.state(lambda marks=marks: marks.append(time.thread_time()))
        line = msgspec.json.encode(Snapshot(1.0, "0", settings.document(), state))
        marks.append(time.thread_time())
        pieces.append(max(after - before for before, after in pairwise(marks)) * 1000)
        thread_ms.append((marks[-1] - marks[0]) * 1000)
        begin = time.thread_time()
        Cut(control, residents=False)
        follow_ms.append((time.thread_time() - begin) * 1000)
    print(
        f"{len(control.pool.requests)} residents, {engines} engines, {len(line) / 1000:.0f} kB\n"
        f"on the loop: median {median(loop_ms):.2f} ms, max {max(loop_ms):.2f} ms\n"
        f"in the journal's thread: median {median(thread_ms):.2f} ms, its longest piece {median(pieces):.2f} ms\n"
        f"for a follower, on the loop: median {median(follow_ms):.2f} ms, max {max(follow_ms):.2f} ms"
    )


if __name__ == "__main__":
    main()
