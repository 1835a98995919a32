"""Who a client is: its API key, the tenant that the key belongs to, and what that tenant may use.

Keys are kept as SHA-256 digests only. They are random and long (`new_key`: 256 bits), so nobody can guess one from its
digest; a slow, salted hash protects passwords that people choose, and would cost milliseconds for each request here.
The digest finds its tenant in a table, and is then compared in constant time: what the look-up takes can tell about
digests alone, and no one can make a key for a digest that is known.
"""

import hmac
import secrets
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NoReturn

from narwhal.fleet.model import Secret, Tenant
from narwhal.fleet.secrets import SecretError, read_secret
from narwhal.router.errors import ServeError
from narwhal.router.syntax import BadRequestError

DEFAULT = "default"
"""The tenant of every request where the fleet file declares none."""
LEAST_CHARACTERS = 20
PREFIX = "nw-"
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NOBODY: tuple[bytes, None] = (bytes(32), None)


class DeniedError(BadRequestError):
    """A request that is refused for who sent it."""


class Keys:
    """The tenants by key. Without tenants everyone is `default` and needs no key."""

    def __init__(self, by_digest: Mapping[bytes, tuple[bytes, Tenant]] | None, model: str) -> None:
        self._by_digest = by_digest
        self._model = model

    def tenant(self, authorization: bytes | None) -> str:
        """Name of the tenant that an `Authorization` header belongs to. Raises `DeniedError`."""
        if self._by_digest is None:
            return DEFAULT
        if authorization is None:
            _deny(401, "missing_api_key", "no API key: send it as `Authorization: Bearer KEY`")
        scheme, _, key = authorization.partition(b" ")
        digest = sha256(key.strip()).digest()
        kept, found = self._by_digest.get(digest, _NOBODY)
        if not hmac.compare_digest(kept, digest) or found is None or scheme.lower() != b"bearer":
            _deny(401, "invalid_api_key", "the API key is not valid")
        if found.disabled:
            _deny(403, "tenant_disabled", f"tenant {found.name} is disabled")
        if found.models and self._model not in found.models:
            _deny(403, "model_not_allowed", f"tenant {found.name} may not use this model")
        return found.name


def _deny(status: int, code: str, message: str) -> NoReturn:
    headers = b"www-authenticate: Bearer\r\n" if status == 401 else b""
    raise DeniedError(status, message, code=code, headers=headers)


def read_keys(tenants: Sequence[Tenant], model: str) -> Keys:
    """The keys of a fleet file's tenants, read now: at the start, and at a reload.

    Raises `ServeError` for a key that cannot be read, is too short, or is another tenant's too.
    """
    if not tenants:
        return Keys(None, model)
    by_digest: dict[bytes, tuple[bytes, Tenant]] = {}
    for i, tenant in enumerate(tenants):
        for j, secret in enumerate(tenant.keys):
            place = f"routers.tenants[{i}].keys[{j}]"
            key = _read(secret, place)
            if len(key) < LEAST_CHARACTERS:
                said = f"{place}: the key of tenant {tenant.name} has less than {LEAST_CHARACTERS} characters"
                raise ServeError(f"{said}; make one with `narwhal keys new {tenant.name}`")
            digest = sha256(key.encode()).digest()
            owner = by_digest.setdefault(digest, (digest, tenant))[1]
            if owner is not tenant:
                raise ServeError(f"{place}: tenant {owner.name} has the same key; make another")
    return Keys(by_digest, model)


def _read(secret: Secret, place: str) -> str:
    try:
        return read_secret(secret, place).strip()
    except SecretError as error:
        raise ServeError(str(error)) from None


def new_key() -> str:
    """A new key: 43 random characters of base 62, as many as 32 random bytes."""
    return PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(43))
