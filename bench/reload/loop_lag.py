"""How long the router's loop is held up while it reads a fleet file: in place, in a thread, in a process.

    .venv/bin/python bench/reload/loop_lag.py [HOSTS]

Prints the longest delay of a 1 ms timer for each way, over a file of HOSTS hosts with eight engines each (32).
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from narwhal.fleet import open_fleet
from narwhal.router.reloader import TURN_S

FLEET = """\
apiVersion: narwhal/v1
kind: Fleet
metadata: {{name: big}}
model: {{name: m, path: /models/m}}
slo: {{ttft_s: 2.0, tpot_s: 0.05}}
hosts:
{hosts}engines:
  runtime: {{kind: venv, package: vllm==0.26.0}}
split: {{prefill: {prefill}, decode: {decode}}}
routers: {{primary: gpu-1}}
"""
HOST = "  - {{name: gpu-{0}, gpus: 8, ssh: {{address: 10.0.0.{0}, user: ops}}}}\n"
ROUNDS = 3


async def in_place(path: Path) -> None:
    open_fleet(path)


async def thread(path: Path) -> None:
    await asyncio.to_thread(open_fleet, path)


async def yielding_thread(path: Path) -> None:
    """As the router does it."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    try:
        await asyncio.to_thread(open_fleet, path)
    finally:
        sys.setswitchinterval(usual_s)


async def process(path: Path) -> None:
    program = "import sys; from narwhal.fleet import open_fleet; open_fleet(sys.argv[1])"
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(path))
    await child.wait()


async def measure(work: Callable[[Path], Awaitable[None]], path: Path) -> tuple[float, float]:
    """Seconds that the work took, and the longest delay of a 1 ms timer meanwhile."""
    loop, late, done = asyncio.get_running_loop(), [0.0], False

    async def beat() -> None:
        while not done:
            due_t = loop.time() + 0.001
            await asyncio.sleep(0.001)
            late[0] = max(late[0], loop.time() - due_t)

    task = loop.create_task(beat())
    await asyncio.sleep(0.05)
    late[0], began_t = 0.0, time.perf_counter()
    await work(path)
    took_s = time.perf_counter() - began_t
    await asyncio.sleep(0.002)
    done = True
    await task
    return took_s, late[0]


async def main(hosts: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.yaml"
        listed = "".join(HOST.format(number) for number in range(1, hosts + 1))
        path.write_text(FLEET.format(hosts=listed, prefill=3 * hosts, decode=5 * hosts))
        open_fleet(path)
        for work in (in_place, thread, yielding_thread, process):
            runs = [await measure(work, path) for _ in range(ROUNDS)]
            took = ", ".join(f"{took_s:.2f}" for took_s, _ in runs)
            lag = ", ".join(f"{lag_s * 1e3:.0f}" for _, lag_s in runs)
            print(f"{work.__name__:<16} took {took} s, longest delay {lag} ms")


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 32))
