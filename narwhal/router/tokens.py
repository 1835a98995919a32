"""Who may use the admin listener: bearer tokens with a scope, kept as digests."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from narwhal.fleet.model import AdminToken, Scope
from narwhal.fleet.secrets import SecretError, read_secret

MIN_LENGTH = 16
"""Characters of a token: what is shorter can be guessed over the network."""
GRANTS: dict[Scope, frozenset[Scope]] = {
    "read": frozenset({"read"}),
    "operate": frozenset({"read", "operate"}),
    "replicate": frozenset({"read", "replicate"}),
}
"""What each scope allows."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Someone who asks, and what they may."""

    name: str
    grants: frozenset[Scope]


Known = tuple[tuple[bytes, Caller], ...]
"""Digests of tokens, and who bears each."""


class Tokens:
    """The tokens of the fleet file. Raises `SecretError` when one cannot be read or is too short."""

    def __init__(self, declared: Sequence[AdminToken], environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._known = self.read(declared)

    def __bool__(self) -> bool:
        return bool(self._known)

    def use(self, known: Known) -> None:
        """Let these be the tokens from now on."""
        self._known = known

    def caller(self, token: bytes) -> Caller | None:
        """Who bears a token. Every known one is compared, in constant time, whichever matches."""
        digest = hashlib.sha256(token).digest()
        found = None
        for known, caller in self._known:
            if hmac.compare_digest(known, digest):
                found = caller
        return found

    def read(self, declared: Sequence[AdminToken]) -> Known:
        """What a fleet file declares, not in use yet. Raises `SecretError`."""
        known = []
        for i, token in enumerate(declared):
            key = f"routers.admin.tokens[{i}].token"
            text = read_secret(token.token, key, self._environ)
            if len(text) < MIN_LENGTH:
                hint = "`openssl rand -hex 32` makes a good one"
                raise SecretError(f"{key}: {token.name!r} has fewer than {MIN_LENGTH} characters; {hint}")
            known.append((hashlib.sha256(text.encode()).digest(), Caller(f"token {token.name}", GRANTS[token.scope])))
        return tuple(known)
