"""A router's standing: what it may do as its lease comes, is proven, ends, or cannot be seen."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from narwhal.router.lease import FileStore, Keeper, LostError, Standing, StoreError, Term
from narwhal.router.lease.keeper import Role
from narwhal.router.lease.store import Leader
from tests.router.lease.conftest import PATIENCE_S, Etcd


class ScriptedStore:
    """A store whose lease ends, or which does not answer, when the test says so."""

    def __init__(self) -> None:
        self.epoch = 0
        self.holder: str | None = None
        self.value: bytes | None = None
        self.down = False
        self.renewals = 0
        self.ttl_s = 30.0

    def _check(self) -> None:
        if self.down:
            raise StoreError("down")

    def leader(self) -> Leader | None:
        self._check()
        return None if self.holder is None else Leader(self.holder, self.epoch)

    def campaign(self, holder: str) -> Term | None:
        self._check()
        if self.holder is not None:
            return None
        self.epoch += 1
        self.holder = holder
        return Term(self.epoch, self.ttl_s)

    def renew(self, term: Term) -> None:
        self._check()
        if term.epoch != self.epoch or self.holder is None:
            raise LostError("gone")
        self.renewals += 1

    def resign(self, term: Term) -> None:
        self._check()
        self.holder = None

    def read(self) -> bytes | None:
        self._check()
        return self.value

    def write(self, term: Term, value: bytes) -> None:
        self.renew(term)
        self.value = value

    def close(self) -> None: ...


class Watched:
    """A keeper, and all that it told."""

    def __init__(self, store: object, holder: str = "me", **options: object) -> None:
        self.told: list[Standing] = []
        self.maps: list[bytes | None] = []
        self.keeper = Keeper(
            store,  # type: ignore[arg-type]
            holder,
            poll_s=0.02,
            tell=self.told.append,
            taken=self.maps.append,
            **options,  # type: ignore[arg-type]
        )
        self._done = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)
        self._ticker.start()
        self.keeper.start()

    def _tick(self) -> None:
        while not self._done.wait(0.02):
            self.keeper.beat()

    def stop_beating(self) -> None:
        self._done.set()
        self._ticker.join()

    def until(self, met: Callable[[Standing], bool]) -> Standing:
        until_t = time.monotonic() + PATIENCE_S
        while not met(self.keeper.standing):
            assert time.monotonic() < until_t, self.keeper.standing
            time.sleep(0.01)
        return self.keeper.standing

    def write(self, value: bytes) -> bool:
        answers: list[bool] = []
        heard = threading.Event()

        def done(written: bool) -> None:
            answers.append(written)
            heard.set()

        self.keeper.write(value, done)
        assert heard.wait(PATIENCE_S)
        assert len(answers) == 1
        return answers[0]


Watch = Callable[..., Watched]


@pytest.fixture
def watch() -> Iterator[Watch]:
    watched: list[Watched] = []

    def begin(store: object, holder: str = "me", **options: object) -> Watched:
        watched.append(Watched(store, holder, **options))
        return watched[-1]

    yield begin
    for each in watched:
        each.keeper.stop()
        each.stop_beating()


def leads(standing: Standing) -> bool:
    return standing.role is Role.leader


def test_it_leads_with_the_map_as_it_stood(watch: Watch) -> None:
    store = ScriptedStore()
    store.value = b"old"
    mine = watch(store)
    standing = mine.until(leads)
    assert mine.maps == [b"old"]
    assert standing.proven(time.monotonic())
    assert mine.write(b"new")
    assert store.value == b"new"


def test_a_standby_waits_and_names_the_leader(watch: Watch) -> None:
    store = ScriptedStore()
    store.campaign("other")
    mine = watch(store)
    standing = mine.until(lambda s: s.holder == "other")
    assert standing.role is Role.standby
    assert not standing.proven(time.monotonic())
    assert not mine.write(b"no")
    assert store.value is None


def test_one_that_is_no_candidate_takes_nothing(watch: Watch) -> None:
    store = ScriptedStore()
    mine = watch(store, candidate=False)
    store.epoch, store.holder = 5, "other"
    mine.until(lambda s: s.holder == "other")
    store.holder = None
    mine.until(lambda s: s.holder == "")
    mine.keeper.stand(True)
    assert mine.until(leads).epoch == 6


def test_an_unreachable_store_freezes_and_deposes_nobody(watch: Watch) -> None:
    store = ScriptedStore()
    store.ttl_s = 0.2
    mine = watch(store)
    mine.until(leads)
    store.down = True
    standing = mine.until(lambda s: s.trouble != "" and not s.proven(time.monotonic()))
    assert standing.role is Role.leader  # it serves on
    assert not mine.write(b"frozen")
    store.down = False
    mine.until(lambda s: s.trouble == "" and s.proven(time.monotonic()))
    assert mine.write(b"thawed")


def test_a_higher_epoch_deposes(watch: Watch) -> None:
    store = ScriptedStore()
    mine = watch(store)
    mine.until(leads)
    store.epoch, store.holder = store.epoch + 1, "other"
    standing = mine.until(lambda s: s.role is Role.deposed)
    assert standing.holder == "other"
    assert not mine.write(b"late")


def test_a_lost_lease_that_nobody_took_is_taken_again_with_a_new_epoch(watch: Watch) -> None:
    store = ScriptedStore()
    mine = watch(store)
    first = mine.until(leads).epoch
    store.holder = None
    assert mine.until(lambda s: leads(s) and s.epoch > first).epoch == first + 1
    assert Role.deposed not in {standing.role for standing in mine.told}
    assert len(mine.maps) == 2


def test_it_does_not_renew_for_a_loop_that_stands_still(watch: Watch) -> None:
    store = ScriptedStore()
    mine = watch(store, loop_patience_s=0.2)
    mine.until(leads)
    mine.stop_beating()
    until_t = time.monotonic() + PATIENCE_S
    while True:
        before = store.renewals
        time.sleep(0.3)
        if store.renewals == before:
            break
        assert time.monotonic() < until_t
    mine.keeper.beat()
    while store.renewals == before:
        assert time.monotonic() < until_t
        time.sleep(0.01)


def test_a_stopped_keeper_gives_the_lease_up_and_refuses_what_waits(watch: Watch) -> None:
    store = ScriptedStore()
    mine = watch(store)
    mine.until(leads)
    mine.keeper.stop()
    assert store.holder is None
    other = watch(store, "other")
    assert other.until(leads).epoch == 2


def test_two_keepers_of_one_lock_take_turns(tmp_path: Path, watch: Watch) -> None:
    first = watch(FileStore(tmp_path / "lease"), "first")
    first.until(leads)
    assert first.write(b"map of the first")
    second = watch(FileStore(tmp_path / "lease"), "second")
    second.until(lambda s: s.holder == "first")
    first.keeper.stop()
    assert second.until(leads).epoch == 2
    assert second.maps == [b"map of the first"]


@pytest.mark.e2e
def test_etcd_that_dies_freezes_the_leader_and_promotes_nobody(tmp_path: Path, watch: Watch) -> None:
    etcd = Etcd(tmp_path)
    try:
        first = watch(etcd.store(), "first")
        first.until(leads)
        second = watch(etcd.store(), "second")
        second.until(lambda s: s.holder == "first")
        etcd.stop()
        first.until(lambda s: s.trouble != "" and not s.proven(time.monotonic()))
        second.until(lambda s: s.trouble != "")
        assert first.keeper.standing.role is Role.leader
        assert second.keeper.standing.role is Role.standby
        etcd.start()
        first_or_second = (first, second)
        until_t = time.monotonic() + PATIENCE_S
        while sum(w.keeper.standing.proven(time.monotonic()) for w in first_or_second) != 1:
            assert time.monotonic() < until_t
            time.sleep(0.05)
    finally:
        etcd.stop()


def test_a_lease_that_is_given_up_is_not_taken_back_until_told(watch: Watch) -> None:
    store = ScriptedStore()
    kept = watch(store)
    kept.until(lambda s: s.role is Role.leader)
    kept.keeper.resign()
    kept.until(lambda s: s.proven_until_t == 0.0)
    assert not kept.write(b"late")
    assert kept.keeper.standing.role is Role.leader  # nobody else leads yet: it serves on
    other = watch(store, "other")
    other.until(lambda s: s.role is Role.leader)
    kept.until(lambda s: s.role is Role.deposed)
    kept.keeper.stand(True)
    other.keeper.stop()
    kept.until(lambda s: s.role is Role.leader)
    assert kept.keeper.standing.epoch == 3
