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


def open_store(lease: EtcdLease | FileLease, fleet: str, state_dir: Path, environ: Mapping[str, str]) -> Store:
    """The store that a fleet file names. Raises `StoreError` for a certificate or password that cannot be read."""
    from narwhal.router.lease.etcd import EtcdStore
    from narwhal.router.lease.file import FileStore

    if isinstance(lease, EtcdLease):
        return EtcdStore.of(lease, fleet, environ)
    return FileStore(Path(lease.path) if lease.path else state_dir / "lease")
