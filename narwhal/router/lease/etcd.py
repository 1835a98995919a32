"""A lease in etcd, through the JSON gateway of its v3 API (https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/).

Two keys below `PREFIX/FLEET`: `/leader`, which the holder made with its lease, so that it goes when the lease does, and
whose create revision is the epoch; and `/map`, which is only written in a transaction that compares that revision.
"""

import base64
import http.client
import json
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from narwhal.documents import write_atomically
from narwhal.fleet.model import EtcdLease
from narwhal.fleet.secrets import SecretError, read_secret
from narwhal.router.lease.store import Leader, LostError, StoreError, Term

_GONE = 5
"""gRPC's NOT_FOUND: etcd knows no such lease."""
_UNAUTHENTICATED = 16
_INVALID_TOKEN = "invalid auth token"  # noqa: S105 - etcd's words


class _AnswerError(StoreError):
    """etcd answered, and said no."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class EtcdStore:
    """Speaks with the first of `endpoints` that answers.

    `note`: a file for the id of the lease that is held, so that it can be revoked for a process that is dead.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        prefix: str,
        *,
        ttl_s: float,
        tls: ssl.SSLContext | None = None,
        user: str = "",
        password: str = "",
        note: Path | None = None,
    ) -> None:
        self._note = note
        self._endpoints = list(endpoints)
        self._leader_key, self._map_key = (_text(f"{prefix}/{name}") for name in ("leader", "map"))
        self._ttl_s = ttl_s
        self._timeout_s = min(2.0, ttl_s / 3)
        self._tls = tls
        self._user, self._password = user, password
        self._token = ""
        self._connection: http.client.HTTPConnection | None = None

    @classmethod
    def of(cls, lease: EtcdLease, fleet: str, environ: Mapping[str, str], note: Path | None = None) -> "EtcdStore":
        """The store of a fleet file. Raises `StoreError` for a file or password that cannot be read."""
        context = None
        if any(url.startswith("https:") for url in lease.endpoints):
            try:
                context = ssl.create_default_context(cafile=lease.tls.ca if lease.tls else None)
                if lease.tls is not None and lease.tls.cert is not None:
                    context.load_cert_chain(lease.tls.cert, lease.tls.key)
            except OSError as error:
                raise StoreError(f"lease.tls cannot be used: {error.strerror or error}") from error
        user = password = ""
        if lease.auth is not None:
            try:
                user, password = lease.auth.user, read_secret(lease.auth.password, "lease.auth.password", environ)
            except SecretError as error:
                raise StoreError(str(error)) from error
        prefix = f"{lease.prefix.rstrip('/')}/{fleet}"
        return cls(lease.endpoints, prefix, ttl_s=lease.ttl_s, tls=context, user=user, password=password, note=note)

    def leader(self) -> Leader | None:
        """Who holds the leader key."""
        found = self._range(self._leader_key)
        return None if found is None else Leader(_bytes(found["value"]).decode(), int(found["create_revision"]))

    def campaign(self, holder: str) -> Term | None:
        """Make the leader key with a lease of its own, unless somebody has it."""
        found = self._range(self._leader_key)
        if found is not None:
            if _bytes(found["value"]).decode() != holder:
                return None
            # made by a call whose answer never came: its lease runs
            return Term(int(found["create_revision"]), self._ttl_s, str(found["lease"]))
        granted = self._ask("lease/grant", {"TTL": max(1, round(self._ttl_s))})
        token, ttl_s = str(granted["ID"]), float(granted["TTL"])
        self._keep(token)
        answer = self._txn(
            [{"key": self._leader_key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}],
            [{"request_put": {"key": self._leader_key, "value": _text(holder), "lease": token}}],
        )
        if not answer.get("succeeded"):
            self.resign(Term(0, 0.0, token))
            return None
        return Term(int(answer["header"]["revision"]), ttl_s, token)

    def renew(self, term: Term) -> None:
        """Keep the lease alive, and see that the leader key is still the term's."""
        answer = self._ask("lease/keepalive", {"ID": term.token})
        if int(answer.get("result", {}).get("TTL", 0)) <= 0:
            raise LostError("the lease has ended")
        found = self._range(self._leader_key)
        if found is None or int(found["create_revision"]) != term.epoch:
            raise LostError("another leads" if found else "the leader key is gone")

    def resign(self, term: Term) -> None:
        """Revoke the lease; its key goes with it."""
        try:
            self._ask("lease/revoke", {"ID": term.token})
        except _AnswerError as error:
            if error.code != _GONE:
                raise
        if self._note is not None:
            self._note.unlink(missing_ok=True)

    def _keep(self, token: str) -> None:
        """Note a lease before it is made use of. Raises `StoreError`."""
        if self._note is not None:
            try:
                self._note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_atomically(self._note, token, mode=0o600)
            except OSError as error:
                raise StoreError(f"{self._note}: {error.strerror or error}") from error

    def read(self) -> bytes | None:
        """The role map."""
        found = self._range(self._map_key)
        return None if found is None else _bytes(found.get("value", ""))

    def write(self, term: Term, value: bytes) -> None:
        """Write the role map, compared with the leader key's create revision."""
        answer = self._txn(
            [{"key": self._leader_key, "target": "CREATE", "result": "EQUAL", "create_revision": str(term.epoch)}],
            [{"request_put": {"key": self._map_key, "value": base64.b64encode(value).decode()}}],
        )
        if not answer.get("succeeded"):
            raise LostError("another leads, or nobody does")

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _range(self, key: str) -> dict[str, Any] | None:
        found = self._ask("kv/range", {"key": key}).get("kvs", [])
        return found[0] if found else None

    def _txn(self, compare: list[dict[str, Any]], success: list[dict[str, Any]]) -> dict[str, Any]:
        return self._ask("kv/txn", {"compare": compare, "success": success})

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask one member after the other until one answers; a token that has run out is replaced once."""
        if self._user and not self._token:
            self._log_in()
        try:
            return self._ask_members(path, body)
        except _AnswerError as error:
            if not self._user or (error.code != _UNAUTHENTICATED and _INVALID_TOKEN not in str(error)):
                raise
        self._log_in()
        return self._ask_members(path, body)

    def _log_in(self) -> None:
        self._token = ""
        answer = self._ask_members("auth/authenticate", {"name": self._user, "password": self._password})
        self._token = str(answer["token"])

    def _ask_members(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        reason: Exception | None = None
        for _ in range(len(self._endpoints)):
            try:
                return self._ask_first(path, body)
            except (OSError, http.client.HTTPException) as error:
                reason = error
                self.close()
                self._endpoints.append(self._endpoints.pop(0))
        raise StoreError(f"no etcd member answers: {getattr(reason, 'strerror', None) or reason!r}") from reason

    def _ask_first(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self._connection is None:
            parts = urlsplit(self._endpoints[0])
            host, port = parts.hostname or "", parts.port or 2379
            if parts.scheme == "https":
                self._connection = http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=self._tls)
            else:
                self._connection = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        headers = {"Content-Type": "application/json"} | ({"Authorization": self._token} if self._token else {})
        self._connection.request("POST", f"/v3/{path}", json.dumps(body), headers)
        answer = self._connection.getresponse()
        raw = answer.read()
        try:
            document = json.loads(raw)
        except ValueError as error:
            raise StoreError(f"{path}: etcd answered {answer.status} and no JSON") from error
        if answer.status >= 400 or not isinstance(document, dict):
            said = document if isinstance(document, dict) else {}
            message = said.get("message") or said.get("error") or f"status {answer.status}"
            raise _AnswerError(f"{path}: etcd says {message}", int(said.get("code", 0)))
        return document


def _text(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
