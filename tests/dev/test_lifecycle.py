import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from narwhal.dev import DevError, Instance, lifecycle
from narwhal.dev.lifecycle import Member, down, recorded_states, states, up
from narwhal.dev.process import living
from tests.dev.stubs import BROKEN, SERVER, SILENT, member, members

Use = Callable[[list[Member]], None]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Have the instance consist of the given members."""

    def choose(chosen: list[Member]) -> None:
        monkeypatch.setattr(lifecycle, "members", lambda instance, expanded: chosen)

    return choose


def quiet(line: str) -> None:
    """Say nothing."""


def pids(instance: Instance) -> dict[str, int]:
    return {name: process.identity.pid for name, process in living(instance.run).items()}


def test_up_starts_all_and_a_second_up_nothing(instance: Instance, use: Use) -> None:
    use(members(instance, SERVER, SERVER, SERVER))
    said: list[str] = []
    first = up(instance, said.append)
    assert first.started == ("local/0", "local/1", "router")
    assert "starting local/0, local/1" in said
    before = pids(instance)
    assert up(instance, quiet).started == ()
    assert pids(instance) == before
    assert [row["state"] for row in states(instance)] == ["ready"] * 3
    assert down(instance) == ["local/0", "local/1", "router"]
    assert down(instance) == []
    assert [row["state"] for row in states(instance)] == ["stopped"] * 3


def test_up_replaces_only_what_died(instance: Instance, use: Use) -> None:
    use(members(instance, SERVER, SERVER, SERVER))
    handles = up(instance, quiet).handles
    before = pids(instance)
    os.kill(before["local/1"], signal.SIGKILL)
    handles[1].wait()
    assert [row["state"] for row in states(instance)] == ["ready", "dead", "ready"]
    assert up(instance, quiet).started == ("local/1",)
    after = pids(instance)
    assert (after["local/0"], after["router"]) == (before["local/0"], before["router"])
    assert after["local/1"] != before["local/1"]


def test_up_restarts_what_was_started_from_another_fleet_file(instance: Instance, use: Use) -> None:
    chosen = members(instance, SERVER, SERVER, inputs="old")
    use(chosen)
    up(instance, quiet)
    use([member(instance, m.start.name, m.ports[0], inputs="new") for m in chosen])
    again = up(instance, quiet)
    assert again.stopped == ("local/0", "router")
    assert again.started == ("local/0", "router")


def test_up_stops_what_the_fleet_file_no_longer_names(instance: Instance, use: Use) -> None:
    chosen = members(instance, SERVER, SERVER, SERVER)
    use(chosen)
    up(instance, quiet)
    use([chosen[0], chosen[2]])
    assert up(instance, quiet).stopped == ("local/1",)
    assert sorted(pids(instance)) == ["local/0", "router"]


def test_what_runs_from_another_text_or_is_no_member_any_more_is_outdated(instance: Instance, use: Use) -> None:
    chosen = members(instance, SERVER, SERVER, SERVER, inputs="old")
    use(chosen)
    up(instance, quiet)
    use([member(instance, m.start.name, m.ports[0], inputs="new") for m in (chosen[0], chosen[2])])
    rows = {row["name"]: (row["state"], row["pid"], row["url"]) for row in states(instance)}
    assert rows == {name: ("outdated", pid, None) for name, pid in pids(instance).items()}
    assert sorted(rows) == ["local/0", "local/1", "router"]
    up(instance, quiet)
    assert [(row["name"], row["state"]) for row in states(instance)] == [("local/0", "ready"), ("router", "ready")]


def test_a_process_that_was_stopped_does_not_answer(instance: Instance, use: Use) -> None:
    use(members(instance, SERVER, SERVER))
    up(instance, quiet)
    os.kill(pids(instance)["local/0"], signal.SIGSTOP)
    assert [row["state"] for row in states(instance)] == ["not answering", "ready"]


def test_the_records_alone_tell_what_runs(instance: Instance, use: Use) -> None:
    use(members(instance, SERVER, SERVER))
    handles = up(instance, quiet).handles
    handles[0].kill()
    handles[0].wait()
    instance.fleet.write_text("model: {")
    assert [(row["name"], row["state"]) for row in recorded_states(instance)] == [
        ("local/0", "dead"),
        ("router", "outdated"),
    ]
    down(instance)
    assert recorded_states(instance) == []


def test_a_process_that_ends_fails_up_with_its_last_words_and_leaves_nothing(instance: Instance, use: Use) -> None:
    use(members(instance, SERVER, BROKEN, SERVER))
    with pytest.raises(DevError, match="out of luck") as failure:
        up(instance, quiet)
    assert "local/1 ended before it was ready" in failure.value.message
    assert pids(instance) == {}


def test_a_process_that_is_never_ready_fails_up_at_the_stage_s_deadline(instance: Instance, use: Use) -> None:
    use(members(instance, SERVER, SILENT))
    with pytest.raises(DevError, match=r"router was not ready within 0\.5 s"):
        up(instance, quiet, router_deadline_s=0.5)
    assert pids(instance) == {}


def test_a_port_of_somebody_else_is_named(instance: Instance, use: Use) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        use([member(instance, "local/0", port), *members(instance, SERVER)])
        with pytest.raises(DevError, match=f"port {port} .* local/0"):
            up(instance, quiet)
    assert pids(instance) == {}


def test_two_verbs_at_a_time_do_not_race(instance: Instance, use: Use) -> None:
    use(members(instance, SERVER))
    with instance.locked("up"), pytest.raises(DevError, match=r"`narwhal dev up` \(pid \d+\) is at work"):
        down(instance)
    up(instance, quiet)


KILLED_UP = """
import sys
from pathlib import Path
from narwhal.dev import Instance, lifecycle
from tests.dev.stubs import SERVER, SILENT, member
instance = Instance(Path(sys.argv[1]))
ports = [int(port) for port in sys.argv[2:]]
programs = [("local/0", SERVER), ("local/1", SILENT), ("router", SERVER)]
lifecycle.members = lambda i, e: [member(i, n, p, s) for (n, s), p in zip(programs, ports)]
lifecycle.up(instance, lambda line: None)
"""


def test_a_killed_up_is_gone_on_with(instance: Instance, use: Use) -> None:
    """Killed while it waits for local/1: its lock is free, its processes are known, the next `up` takes over."""
    chosen = members(instance, SERVER, SERVER, SERVER)
    ports = [str(m.ports[0]) for m in chosen]
    argv = [sys.executable, "-c", KILLED_UP, str(instance.path), *ports]
    first = subprocess.Popen(argv, cwd=Path(__file__).parents[2])
    until_t = time.monotonic() + 60
    while len(pids(instance)) < 2:
        assert time.monotonic() < until_t, "the first `up` started nothing"
        assert first.poll() is None
        time.sleep(0.05)
    first.kill()
    first.wait()
    before = pids(instance)
    assert sorted(before) == ["local/0", "local/1"]
    os.kill(before["local/1"], signal.SIGKILL)  # it would never be ready
    use(chosen)
    assert up(instance, quiet).started == ("local/1", "router")
    assert pids(instance)["local/0"] == before["local/0"]


def test_up_names_the_router_that_leads_and_leaves_the_standby_to_the_operator(
    instance: Instance, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = instance.fleet.read_text()
    text = text.replace("  primary: local\n", "  primary: local\n  standby: local\n  standby_port: 9\n")
    instance.fleet.write_text(text.replace("admin: {", "admin: {standby_port: 19, "))
    use(members(instance, SERVER, SERVER))
    lease = {"standing": "leader", "leader_is": "primary", "followers": 0, "trouble": ""}
    monkeypatch.setattr(lifecycle, "_lease", lambda instance: lease)
    alone = up(instance, quiet)
    assert alone.standby[:2] == ("narwhal-serve", "--standby")
    assert str(instance.state) in alone.standby
    lease |= {"followers": 1}
    assert up(instance, quiet).standby == ()
    lease |= {"leader_is": "standby"}
    other = up(instance, quiet)
    assert (other.url, other.admin_url) == ("http://127.0.0.1:9", "http://127.0.0.1:19")
    lease |= {"standing": "standby", "trouble": "nobody leads: lease.json is no role map"}
    with pytest.raises(DevError, match=r"router stands by: nobody leads: lease\.json is no role map"):
        up(instance, quiet)
    assert len(living(instance.run)) == 2, "what ran before runs on"
