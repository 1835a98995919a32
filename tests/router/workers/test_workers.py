"""Several processes on one client port: exact in what they share, apart in what they own."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from narwhal.dev.ports import free_run
from narwhal.engine.process import start_ticks
from narwhal.router.tenants import new_key
from tests.router.harness import (
    END,
    STREAM_HEAD,
    Asked,
    FakeEngine,
    Router,
    eventually,
    post,
    read_all,
    read_until,
    routing,
    start_router,
    token,
    tokens,
    write_fleet,
)

pytestmark = pytest.mark.e2e
WORKERS = 2
BODY = {"model": "m", "prompt": "x", "max_tokens": 3}
STREAM = {**BODY, "stream": True}


@pytest.fixture
def engines() -> Iterator[list[FakeEngine]]:
    pair = [FakeEngine(), FakeEngine()]
    yield pair
    for engine in pair:
        engine.close()


class Held:
    """Streams of a decode engine that stay open after their first token until they are let go."""

    def __init__(self, engine: FakeEngine) -> None:
        self.let_go = threading.Event()
        engine.leg_2 = self._answer

    def _answer(self, asked: Asked, sock: socket.socket) -> None:
        if not asked.body.get("stream"):
            tokens(asked, sock)
            return
        sock.sendall(STREAM_HEAD + token(" first"))
        self.let_go.wait(120)
        sock.sendall(token(" last") + END)


def workers(router: Router) -> dict[int, Any]:
    return {worker["pid"]: worker for worker in router.state()["workers"]}


def control_of(router: Router) -> int:
    """Pid of the process that decides."""
    parent = router.process.pid
    children = map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
    (control,) = set(children) - set(workers(router))
    return control


def open_stream(router: Router) -> socket.socket:
    sock = router.connect()
    sock.sendall(post(STREAM))
    assert b" first" in read_until(sock, b" first")
    return sock


def ended(pids: set[int]) -> bool:
    """Whether processes have ended; nobody may be there to wait for an orphan."""
    return all(start_ticks(pid) is None for pid in pids)


def streams_on_each(router: Router) -> dict[int, list[socket.socket]]:
    """Open streams until each worker has one, by worker."""
    found: dict[int, list[socket.socket]] = {pid: [] for pid in workers(router)}
    for _ in range(64):
        before = {pid: worker["streams"] for pid, worker in workers(router).items()}
        sock = open_stream(router)
        risen = lambda: [pid for pid, w in workers(router).items() if w["streams"] > before[pid]]  # noqa: E731, B023
        eventually(lambda: bool(risen()), "the stream's worker")  # noqa: B023 - called at once
        found[risen()[0]].append(sock)
        if all(found.values()):
            return found
    raise AssertionError("one worker got every connection")


def residents(router: Router) -> list[int]:
    return [engine["residents"] + engine["prefills"] for engine in router.state()["engines"]]


def all_rows(router: Router, count: int) -> list[Any]:
    eventually(lambda: len(router.rows("request")) >= count, "the journal's rows")
    return router.rows("request")


def test_requests_on_all_workers_are_served_and_counted_once(tmp_path: Path, engines: list[FakeEngine]) -> None:
    with routing(tmp_path, engines, workers=WORKERS) as router:
        assert len(workers(router)) == WORKERS

        def ask(number: int) -> tuple[int, bytes]:
            body = {**BODY, "stream": number % 2 == 0}
            status, _, data = router.send("POST", "/v1/completions", body, {"x-request-id": f"r-{number}"})
            return status, data

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(60)))
        assert [status for status, _ in answers] == [200] * 60
        assert all(b" t2" in data for _, data in answers)
        rows = all_rows(router, 60)
        assert sorted(row["id"] for row in rows) == sorted(f"r-{number}" for number in range(60))
        assert {row["outcome"] for row in rows} == {"served"}
        numbers = [row["request"] for row in rows]
        assert len(set(numbers)) == 60
        assert {number % WORKERS for number in numbers} == set(range(WORKERS)), "one worker got every connection"
        state = router.state()
        assert (state["counts"]["offered"], state["counts"]["served"]) == (60, 60)
        assert residents(router) == [0, 0]
        assert sum(worker["requests"] for worker in state["workers"]) == 0
        assert re.search(rf"serving lab: .*, pid {router.process.pid}$", router.log.read_text(), re.MULTILINE)
        page = router.send("GET", "/metrics", admin=True)[2].decode()
        assert "narwhal_workers 2.0" in page
        assert 'narwhal_requests_ended_total{code="",outcome="served"} 60.0' in page
        for name in (
            "requests_offered_total",
            "requests_judged_total",
            "ttft_seconds_count",
            "queue_wait_seconds_count",
        ):
            assert f"narwhal_{name} 60.0" in page, name
        for worker in range(WORKERS):
            assert f'narwhal_worker_cpu_seconds_total{{worker="{worker}"}}' in page
            memory = re.search(rf'^narwhal_worker_memory_bytes{{worker="{worker}"}} (.*)$', page, re.MULTILINE)
            assert memory is not None
            assert float(memory[1]) > 1e6


def test_a_tenant_s_limit_holds_over_all_workers(tmp_path: Path, engines: list[FakeEngine]) -> None:
    key = tmp_path / "key"
    key.write_text(new_key())
    key.chmod(0o600)
    tenants = f"\n  tenants: [{{name: a, keys: [{{file: {key}}}], max_concurrency: 3}}]"
    auth = {"authorization": f"Bearer {key.read_text()}"}
    held = Held(engines[1])
    with routing(tmp_path, engines, workers=WORKERS, tenants=tenants) as router:
        assert router.send("POST", "/v1/completions", BODY)[0] == 401
        socks = [router.connect() for _ in range(24)]
        for sock in socks:
            sock.sendall(post(STREAM, extra=f"Authorization: {auth['authorization']}\r\n"))
        with ThreadPoolExecutor(24) as pool:
            heads = list(pool.map(lambda sock: read_until(sock, b"\r\n\r\n"), socks))
        assert sorted(head.split(b" ")[1] for head in heads) == [b"200"] * 3 + [b"429"] * 21
        held.let_go.set()
        for sock, head in zip(socks, heads, strict=True):
            if head.split(b" ")[1] == b"200":
                assert read_until(sock, b"0\r\n\r\n").endswith(b"0\r\n\r\n")
        # three clients who ask again as soon as they have their answer, at whichever worker, are never one too many
        with ThreadPoolExecutor(3) as pool:
            again = list(pool.map(lambda _: router.send("POST", "/v1/completions", BODY, auth)[0], range(90)))
        assert again == [200] * 90
        denied = lambda: b'narwhal_denied_total{code="missing_api_key"} 1.0'  # noqa: E731
        eventually(lambda: denied() in router.send("GET", "/metrics", admin=True)[2], "what a worker counts")


def test_large_bodies_are_judged_by_their_head(tmp_path: Path, engines: list[FakeEngine]) -> None:
    serving = "admission: predictive, shutdown_s: 5"
    with routing(tmp_path, engines, workers=WORKERS, serving=serving) as router:
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}\r\n"
        )
        sock = router.connect()
        sock.sendall(head.format(32_000_000, "").encode())
        answer = read_all(sock)
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "prompt"
        sock = router.connect()
        body = json.dumps({**BODY, "user": "x" * 70_000}).encode()
        sock.sendall(head.format(len(body), "Expect: 100-continue\r\n").encode())
        assert read_until(sock, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        assert read_until(sock, b"}}").startswith(b"HTTP/1.1 200 ")


def test_a_worker_that_is_killed_takes_its_own_connections_alone(tmp_path: Path, engines: list[FakeEngine]) -> None:
    held = Held(engines[1])
    with routing(tmp_path, engines, workers=WORKERS) as router:
        streams = streams_on_each(router)
        dead, alive = streams
        lost, kept = len(streams[dead]), len(streams[alive])
        os.kill(dead, signal.SIGKILL)
        for sock in streams[dead]:
            assert b"[DONE]" not in read_all(sock)
        eventually(lambda: residents(router) == [0, kept], "the release of its requests")
        assert [row["outcome"] for row in all_rows(router, lost)] == ["cut"] * lost
        assert {row["code"] for row in router.rows("request")} == {"worker_lost"}
        eventually(lambda: len(workers(router)) == WORKERS and dead not in workers(router), "another worker")
        (new,) = set(workers(router)) - {alive}
        more = streams_on_each(router)
        assert more[new]
        held.let_go.set()
        for sock in [*streams[alive], *more[alive], *more[new]]:
            assert read_all_of_stream(sock).endswith(b"0\r\n\r\n")
        rows = all_rows(router, lost + kept + len(more[alive]) + len(more[new]))
        assert len({row["request"] for row in rows}) == len(rows)
        eventually(lambda: residents(router) == [0, 0], "the end of all")
        assert router.state()["counts"]["cut"] == lost


def test_a_worker_that_hangs_is_killed_and_another_takes_its_place(tmp_path: Path, engines: list[FakeEngine]) -> None:
    with routing(tmp_path, engines, workers=2) as router:
        before = workers(router)
        hung = next(iter(before))
        os.kill(hung, signal.SIGSTOP)
        eventually(lambda: hung not in workers(router) and len(workers(router)) == 2, "another worker")
        assert ended({hung})
        page = router.send("GET", "/metrics", admin=True)[2].decode()
        assert "narwhal_workers_hung_total 1.0" in page
        assert f"(pid {hung}) hangs" in router.log.read_text()
        assert router.send("POST", "/v1/completions", {"prompt": "x", "max_tokens": 3})[0] == 200


def read_all_of_stream(sock: socket.socket) -> bytes:
    data = read_until(sock, b"0\r\n\r\n")
    assert b" last" in data
    assert b"[DONE]" in data
    return data


def test_without_control_streams_finish_and_others_come_again(tmp_path: Path, engines: list[FakeEngine]) -> None:
    held = Held(engines[1])
    with routing(tmp_path, engines, workers=WORKERS) as router:
        streams = streams_on_each(router)
        kept = router.connect()
        kept.sendall(post(BODY))
        assert b"t2" in read_until(kept, b"}}")
        before = set(workers(router))
        control = control_of(router)
        eventually(lambda: router.state()["uptime_s"] > 10.5, "a control that is started again")
        fleet = tmp_path / "fleet.yaml"
        fleet.write_text(fleet.read_text().replace("workers: 2", "workers: 3"))
        os.kill(control, signal.SIGSTOP)  # so that no other is started before the new request
        kept.sendall(post(BODY))
        os.kill(control, signal.SIGKILL)
        answer = read_until(kept, b"}}")
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "no_control"
        eventually(router.ready, "another control")
        eventually(lambda: all(e["state"] == "live" for e in router.state()["engines"]), "its engines")
        assert len(workers(router)) == 3, "the file as it is now"
        assert not before & set(workers(router))
        assert router.send("POST", "/v1/completions", BODY)[0] == 200
        held.let_go.set()
        for sock in [sock for socks in streams.values() for sock in socks]:
            assert read_all_of_stream(sock).endswith(b"0\r\n\r\n")
        eventually(lambda: ended(before), "the end of the former workers")
        served = sum(map(len, streams.values())) + 2
        outcomes = [row["outcome"] for row in all_rows(router, served + 1)]
        assert sorted(outcomes) == ["failed"] + ["served"] * served


def test_a_control_that_dies_at_once_ends_everything(tmp_path: Path, engines: list[FakeEngine]) -> None:
    with routing(tmp_path, engines, workers=WORKERS) as router:
        pids = set(workers(router))
        os.kill(control_of(router), signal.SIGKILL)
        assert router.process.wait(60) == 4
        eventually(lambda: ended(pids), "the end of the workers")
        assert "the process that decides ended (SIGKILL)" in router.log.read_text()


def test_sigterm_lets_streams_on_every_worker_finish(tmp_path: Path, engines: list[FakeEngine]) -> None:
    held = Held(engines[1])
    serving = "admission: open, shutdown_s: 60"
    with routing(tmp_path, engines, workers=WORKERS, serving=serving) as router:
        streams = streams_on_each(router)
        pids = {*workers(router), control_of(router)}
        router.process.send_signal(signal.SIGTERM)

        def closed() -> bool:
            try:
                socket.create_connection(("127.0.0.1", router.port), timeout=5).close()
            except ConnectionRefusedError:
                return True
            return False

        eventually(closed, "the listeners' end")
        assert router.process.poll() is None
        held.let_go.set()
        for sock in [sock for socks in streams.values() for sock in socks]:
            assert read_all_of_stream(sock).endswith(b"0\r\n\r\n")
        assert router.process.wait(60) == 0
        assert ended(pids)
        assert [row["outcome"] for row in router.rows("request")] == ["served"] * sum(map(len, streams.values()))


def test_a_second_sigterm_ends_streams_at_once(tmp_path: Path, engines: list[FakeEngine]) -> None:
    held = Held(engines[1])
    with routing(tmp_path, engines, workers=WORKERS, serving="admission: open, shutdown_s: 600") as router:
        streams = streams_on_each(router)
        for _ in range(2):
            router.process.send_signal(signal.SIGTERM)
            eventually(lambda: "stopping" in router.log.read_text(), "the first one's effect")
        for sock in [sock for socks in streams.values() for sock in socks]:
            assert b'"stopping"' in read_all(sock)
        held.let_go.set()
        assert router.process.wait(60) == 0
        assert {row["outcome"] for row in router.rows("request")} == {"cut"}


def test_a_reload_reaches_every_worker(tmp_path: Path, engines: list[FakeEngine]) -> None:
    with routing(tmp_path, engines, workers=WORKERS) as router:
        fleet = tmp_path / "fleet.yaml"
        large = {**BODY, "prompt": "x" * 30000}
        text = fleet.read_text()
        assert router.send("POST", "/v1/completions", large)[0] == 200
        fleet.write_text(
            text.replace("max_body_bytes: 65536", "max_body_bytes: 20000").replace("workers: 2", "workers: 3")
        )
        status, _, data = router.send("POST", "/narwhal/reload", {}, admin=True)
        reload = json.loads(data)["reload"]
        assert status == 200
        assert [change["path"] for change in reload["applied"]] == ["serving.max_body_bytes"]
        assert [(change["path"], change["needs"]) for change in reload["restart"]] == [("routers.workers", "router")]
        refused = lambda: [router.send("POST", "/v1/completions", large)[0] for _ in range(16)] == [413] * 16  # noqa: E731
        eventually(refused, "the limit in every worker")
        assert len(workers(router)) == WORKERS
        router.process.send_signal(signal.SIGHUP)
        eventually(lambda: "reload (SIGHUP): no change" in router.log.read_text(), "a reload by signal")
        assert router.send("POST", "/v1/completions", BODY)[0] == 200


def test_a_port_that_is_taken_is_an_error(tmp_path: Path, engines: list[FakeEngine]) -> None:
    fleet, port, admin_port = write_fleet(tmp_path, [engine.port for engine in engines], workers=WORKERS)
    with socket.create_server(("127.0.0.1", port), reuse_port=True):
        router = start_router(tmp_path, fleet, port, admin_port)
        assert router.process.wait(60) == 4
        assert f"cannot listen on 127.0.0.1:{port} (routers.port)" in router.log.read_text()
    with socket.create_server(("127.0.0.1", admin_port)):
        router = start_router(tmp_path, fleet, port, admin_port)
        assert router.process.wait(60) == 4
        assert f"cannot listen on 127.0.0.1:{admin_port} (routers.admin.port)" in router.log.read_text()


def test_a_port_that_two_routers_take_turns_on_is_an_error(tmp_path: Path, engines: list[FakeEngine]) -> None:
    fleet, port, admin_port = write_fleet(tmp_path, [engine.port for engine in engines], workers=WORKERS)
    text = fleet.read_text().replace("  primary: local\n", "  primary: local\n  standby: local\n")
    fleet.write_text(
        text.replace(f"admin: {{port: {admin_port}", f"admin: {{port: {admin_port}, standby_port: {free_run(1)}")
    )
    router = start_router(tmp_path, fleet, port, admin_port)
    assert router.process.wait(60) == 4, router.log.read_text()
    assert "routers.standby_port" in router.log.read_text()


def test_a_socket_that_systemd_passed_is_every_worker_s(tmp_path: Path, engines: list[FakeEngine]) -> None:
    fleet, port, admin_port = write_fleet(tmp_path, [engine.port for engine in engines], workers=WORKERS)
    log = tmp_path / "router.log"
    argv = [sys.executable, "-m", "narwhal.cli.serve", "--fleet", str(fleet), "--state-dir", str(tmp_path / "state")]
    argv = ["sh", "-c", 'LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"', "sh", *argv]
    with socket.create_server(("127.0.0.1", port), backlog=128) as given, log.open("wb") as file:
        process = subprocess.Popen(
            argv, stdout=file, stderr=file, pass_fds=(3,), preexec_fn=lambda: os.dup2(given.fileno(), 3)
        )
        router = Router(process, port, admin_port, tmp_path / "state", log)
        try:
            eventually(router.ready, "the router's readiness")
            eventually(lambda: all(e["state"] == "live" for e in router.state()["engines"]), "the engines' life")
            assert [router.send("POST", "/v1/completions", BODY)[0] for _ in range(20)] == [200] * 20
        finally:
            assert router.stop() == 0
        socket.create_connection(("127.0.0.1", port), timeout=5).close()  # it is systemd's, and stays open


def test_nothing_outlives_the_process_that_was_started(tmp_path: Path, engines: list[FakeEngine]) -> None:
    with routing(tmp_path, engines, workers=WORKERS) as router:
        pids = {*workers(router), control_of(router)}
        router.process.kill()
        eventually(lambda: ended(pids), "the end of the others")
