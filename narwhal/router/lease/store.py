"""What a lease store can do, etcd or a locked file. Its calls block: the thread of the keeper makes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from narwhal.fleet.model import EtcdLease, FileLease


class StoreError(Exception):
    """The store did not answer, or not what it should: nobody knows whether what was asked was done."""


class LostError(Exception):
    """The lease is not this router's any more: the store said so."""


@dataclass(frozen=True, slots=True)
class Term:
    """One time of holding the lease."""

    epoch: int
    """Grows with every holder: etcd's create revision of the leader key, or the count in the file."""
    ttl_s: float
    """How long it lives without a renewal, in seconds; infinite for a lock."""
    token: str = ""
    """What the store knows it by."""


@dataclass(frozen=True, slots=True)
class Leader:
    """Who holds the lease."""

    holder: str
    epoch: int


class Store(Protocol):
    """A lease and one value beside it. Every call raises `StoreError`."""

    def leader(self) -> Leader | None:
        """Who holds the lease now; None when nobody does."""

    def campaign(self, holder: str) -> Term | None:
        """Take the lease when it is free, or find it taken by this very holder; None when another holds it."""

    def renew(self, term: Term) -> None:
        """Prove the lease for another `ttl_s` from the moment before the call. Raises `LostError`."""

    def resign(self, term: Term) -> None:
        """Give the lease up, so that another takes it at once."""

    def read(self) -> bytes | None:
        """The role map, as it was last written; None before the first."""

    def write(self, term: Term, value: bytes) -> None:
        """Write the role map in one step with the proof that the term still holds. Raises `LostError`."""

    def close(self) -> None:
        """Let go of connections; a lock goes with its holder."""


def open_store(
    lease: EtcdLease | FileLease, fleet: str, state_dir: Path, environ: Mapping[str, str], *, standby: bool = False
) -> Store:
    """The store that a fleet file names. Raises `StoreError` for a certificate or password that cannot be read."""
    from narwhal.router.lease.etcd import EtcdStore
    from narwhal.router.lease.file import FileStore

    if isinstance(lease, EtcdLease):
        return EtcdStore.of(lease, fleet, environ, lease_note(state_dir, standby=standby))
    return FileStore(Path(lease.path) if lease.path else state_dir / "lease")


def lease_note(state_dir: Path, *, standby: bool) -> Path:
    """Where a router leaves the id of its lease in etcd while it holds one."""
    return state_dir / ("lease-id-standby" if standby else "lease-id")


def revoke(
    lease: EtcdLease | FileLease, fleet: str, state_dir: Path, environ: Mapping[str, str], *, standby: bool = False
) -> bool:
    """End the lease that a router which is dead has left; whether there was one. A lock ends with its process.

    Raises `StoreError`.
    """
    note = lease_note(state_dir, standby=standby)
    try:
        token = note.read_text().strip() if isinstance(lease, EtcdLease) else ""
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"{note}: {error.strerror or error}") from error
    if not token:
        return False
    store = open_store(lease, fleet, state_dir, environ, standby=standby)
    try:
        store.resign(Term(0, 0.0, token))
    finally:
        store.close()
    return True
