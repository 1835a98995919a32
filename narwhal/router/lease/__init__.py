"""Which router leads: a lease that is held by renewals, and the role map that only its holder may write.

Traffic is not fenced, since engines check no token; the role map is. A router whose lease is unproven freezes the map,
serves on with it, and answers 503 only once it has seen a higher epoch.
"""

from narwhal.router.lease.etcd import EtcdStore
from narwhal.router.lease.file import FileStore
from narwhal.router.lease.keeper import Keeper, Standing
from narwhal.router.lease.store import Leader, LostError, Store, StoreError, Term, open_store, revoke

__all__ = [
    "EtcdStore",
    "FileStore",
    "Keeper",
    "Leader",
    "LostError",
    "Standing",
    "Store",
    "StoreError",
    "Term",
    "open_store",
    "revoke",
]
