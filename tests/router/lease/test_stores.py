"""What every lease store must do, whatever it is made of."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from narwhal.fleet.model import EtcdLease, FileLease
from narwhal.router.lease import FileStore, LostError, StoreError, Term, revoke
from narwhal.router.lease import open_store as open_lease
from tests.router.lease.conftest import PATIENCE_S, Etcd, OpenStore


def won(term: Term | None) -> Term:
    assert term is not None
    return term


def test_one_holds_it_and_the_other_hears_who(open_store: OpenStore) -> None:
    a, b = open_store(), open_store()
    assert a.leader() is None
    term = won(a.campaign("a"))
    assert b.campaign("b") is None
    leader = b.leader()
    assert leader is not None
    assert (leader.holder, leader.epoch) == ("a", term.epoch)
    a.renew(term)


def test_who_holds_it_finds_it_again_and_keeps_its_epoch(open_store: OpenStore) -> None:
    a = open_store()
    term = won(a.campaign("a"))
    assert won(a.campaign("a")).epoch == term.epoch


def test_what_was_given_up_is_free_at_once_and_the_epoch_grows(open_store: OpenStore) -> None:
    a, b = open_store(), open_store()
    first = won(a.campaign("a"))
    a.resign(first)
    assert b.leader() is None
    second = won(b.campaign("b"))
    assert second.epoch > first.epoch
    with pytest.raises(LostError):
        a.renew(first)
    b.renew(second)


def test_the_map_is_written_by_the_holder_alone(open_store: OpenStore) -> None:
    a, b = open_store(), open_store()
    first = won(a.campaign("a"))
    assert b.read() is None
    a.write(first, b'{"roles": "\xff"}')
    assert b.read() == b'{"roles": "\xff"}'
    a.resign(first)
    with pytest.raises(LostError):
        a.write(first, b"late")
    second = won(b.campaign("b"))
    assert b.read() == b'{"roles": "\xff"}'
    with pytest.raises(LostError):
        a.write(first, b"later")
    b.write(second, b"new")
    assert a.read() == b"new"


def test_an_empty_map_is_not_no_map(open_store: OpenStore) -> None:
    a = open_store()
    a.write(won(a.campaign("a")), b"")
    assert a.read() == b""


HOLDER = """
import sys, time
from pathlib import Path
from narwhal.router.lease import FileStore
store = FileStore(Path(sys.argv[1]))
assert store.campaign("child") is not None
import subprocess
child = subprocess.Popen(["sleep", "60"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_killed_process_drops_its_lock_though_its_child_lives(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "lease")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        store = FileStore(tmp_path / "lease")
        assert store.campaign("me") is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.kill(child, 0)  # it lives
        assert won(store.campaign("me")).epoch == 2
        store.close()
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


def test_a_replaced_lock_file_is_a_lost_lease(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "lease")
    term = won(store.campaign("a"))
    (tmp_path / "lease").unlink()
    other = FileStore(tmp_path / "lease")
    assert won(other.campaign("b")).epoch == term.epoch + 1
    with pytest.raises(LostError, match="replaced"):
        store.renew(term)
    other.close()


@pytest.mark.parametrize("broken", [b"{broken", b"", b"[]", b"\xff", b'{"epoch": "6"}', b'{"map": "?"}'])
def test_a_broken_map_file_is_an_error_and_not_an_empty_map(broken: bytes, tmp_path: Path) -> None:
    kept = tmp_path / "lease.json"
    kept.write_bytes(broken)
    store = FileStore(tmp_path / "lease")
    with pytest.raises(StoreError, match=rf"^nobody leads: {kept} is no role map .*; move it away to begin with an em"):
        store.campaign("a")
    kept.rename(tmp_path / "away")
    assert won(store.campaign("a")).epoch == 1
    assert store.read() is None


def test_a_broken_map_file_is_replaced_by_the_one_before_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = tmp_path / "lease.json"
    store = FileStore(tmp_path / "lease")
    first = won(store.campaign("a"))
    for value in (b"old", b"new"):
        store.write(first, value)
    kept.write_text("{broken")
    store.write(first, b"newer")  # it still leads
    store.close()
    kept.write_text("{broken")
    second = won(store.campaign("b"))
    assert second.epoch == first.epoch + 1
    assert store.read() == b"old", "the one before the last, that of what was broken in between"
    store.close()
    kept.write_text("{broken")  # nothing was written in this term
    assert won(store.campaign("c")).epoch == second.epoch + 1
    said = f"the one before it is gone on from, {kept}.1"
    assert {record.getMessage().rpartition(": ")[2] for record in caplog.records} == {said}


def test_two_broken_map_files_are_both_named(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "lease")
    won(store.campaign("a"))
    store.close()
    for name in ("lease.json", "lease.json.1"):
        (tmp_path / name).write_text("{")
    with pytest.raises(StoreError, match=r"lease\.json and \S+lease\.json\.1 are no role map .*; move them away"):
        store.campaign("a")
    (tmp_path / "lease").touch()
    other = FileStore(tmp_path / "lease")
    assert other.leader() is None, "the lock was let go"


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        FileStore(tmp_path / "file/lease").campaign("a")


@pytest.mark.e2e
class TestEtcd:
    """What only etcd does."""

    def test_a_lease_that_nobody_renews_ends(self, etcd: Etcd) -> None:
        a, b = (etcd.store(ttl_s=1.0, prefix="/narwhal/ends") for _ in range(2))
        first = won(a.campaign("a"))
        until_t = time.monotonic() + PATIENCE_S
        while (second := b.campaign("b")) is None:
            assert time.monotonic() < until_t
            time.sleep(0.05)
        assert second.epoch > first.epoch
        with pytest.raises(LostError):
            a.renew(first)
        with pytest.raises(LostError):
            a.write(first, b"late")

    def test_no_member_is_trouble_and_the_next_one_is_asked(self, etcd: Etcd) -> None:
        nobody = "http://127.0.0.1:9"
        with pytest.raises(StoreError, match="no etcd member answers"):
            type(etcd.store())([nobody], "/narwhal/x", ttl_s=2.0).leader()
        assert type(etcd.store())([nobody, etcd.url], "/narwhal/x", ttl_s=2.0).leader() is None

    def test_users_and_passwords(self, tmp_path: Path) -> None:
        member = Etcd(tmp_path)
        try:
            root = member.store(ttl_s=60.0)  # etcd takes its time with passwords
            for path, body in [
                ("auth/user/add", {"name": "root", "password": "r"}),
                ("auth/role/add", {"name": "root"}),
                ("auth/user/grant", {"user": "root", "role": "root"}),
                ("auth/enable", {}),
            ]:
                root._ask(path, body)
            with pytest.raises(StoreError, match="etcd says"):
                member.store(ttl_s=60.0).campaign("a")
            with pytest.raises(StoreError, match="auth/authenticate: etcd says"):
                member.store(ttl_s=60.0, user="root", password="wrong").campaign("a")
            known = member.store(ttl_s=60.0, user="root", password="r")
            term = won(known.campaign("a"))
            known._token = "stale.1"  # as after a restart of etcd
            known.renew(term)
            known.write(term, b"map")
            assert known.read() == b"map"
        finally:
            member.stop()


@pytest.mark.e2e
def test_the_lease_of_a_dead_process_is_revoked_by_what_it_left(etcd: Etcd, tmp_path: Path) -> None:
    lease = EtcdLease(backend="etcd", endpoints=[etcd.url], prefix=f"/{tmp_path.name}", ttl_s=600)
    first = open_lease(lease, "lab", tmp_path, {})
    assert first.campaign("dead") is not None
    second = open_lease(lease, "lab", tmp_path, {}, standby=True)
    assert second.campaign("standby") is None
    assert not revoke(lease, "lab", tmp_path, {}, standby=True)  # it left none of its own
    assert revoke(lease, "lab", tmp_path, {})
    assert not revoke(lease, "lab", tmp_path, {})
    assert second.campaign("standby") is not None
    for store in (first, second):
        store.close()


def test_a_lock_needs_no_revoking(tmp_path: Path) -> None:
    assert not revoke(FileLease(backend="file"), "lab", tmp_path, {})
