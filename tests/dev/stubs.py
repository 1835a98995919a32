"""Processes that stand in for engines and the router: they answer 200 on every path, or do what a test needs."""

import sys

from narwhal.dev.instance import Instance
from narwhal.dev.lifecycle import Member
from narwhal.dev.ports import free_run
from narwhal.dev.process import Start

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
BROKEN = "print('out of luck'); raise SystemExit(3)"
SILENT = "import time; time.sleep(600)"


def member(instance: Instance, name: str, port: int, program: str = SERVER, inputs: str = "v1") -> Member:
    file = name.replace("/", "-")
    start = Start(
        name=name,
        argv=[sys.executable, "-c", program, str(port)],
        log=instance.log / f"{file}.log",
        record=instance.run / f"{file}.json",
        cwd=instance.path,
        inputs=inputs,
    )
    return Member(start, (port,), f"http://127.0.0.1:{port}", "/health")


def members(instance: Instance, *programs: str, inputs: str = "v1") -> list[Member]:
    """A stub for each of `programs`, the last one being the router."""
    first = free_run(len(programs))
    names = [*(f"local/{index}" for index in range(len(programs) - 1)), "router"]
    return [
        member(instance, name, first + index, program, inputs)
        for index, (name, program) in enumerate(zip(names, programs, strict=True))
    ]
