"""Taking out of a bundle what is nobody else's business: secrets, texts of users, names of hosts and people, addresses.

Secrets and texts go. Names and addresses become pseudonyms, the same for the same name within one bundle and others in
the next: they are keyed with a random key that nobody keeps.
"""

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_SENSITIVE = (
    r"[\w.-]*(?:api[_-]?key|token|secret|passw(?:or)?d|passphrase|credential|private[_-]?key|authorization|cookie)\w*"
)
SENSITIVE_KEY = re.compile(rf"(?:{_SENSITIVE}|[\w.-]*_key|key|keys|auth)", re.IGNORECASE)
NOT_SECRET = re.compile(
    r"[\w.-]*tokens|tokens?_(?:per|of|at)_\w*|[\w.-]*_tokens_\w*|max_token\w*|first_token\w*|token_ids?|\w*per_token\w*",
    re.IGNORECASE,
)
"""Keys that speak of tokens of text, or of a number of them."""
TEXT_KEY = re.compile(
    r"(?:prompt|prompts|messages?_text|content|contents|completion|generated_text|output_text|outputs|text|input|input_text"
    r"|messages|prompt_token_ids|stop|body|user|logit_bias)",
    re.IGNORECASE,
)
"""Keys of what clients say and are answered."""
NAME_KEYS = {
    "hostname": "host",
    "tenant": "tenant",
    "by": "caller",
    "user": "user",
    "nodename": "host",
    "boot_id": "id",
}
_COMMON = frozenset(
    (
        *(
            "prefill",
            "decode",
            "router",
            "standby",
            "local",
            "localhost",
            "default",
            "root",
            "narwhal",
            "live",
            "engine",
        ),
        *(
            "engines",
            "fleet",
            "host",
            "hosts",
            "model",
            "reactive",
            "projection",
            "simulated",
            "primary",
            "none",
            "admin",
        ),
    )
)
"""Words that name nobody."""
_TEXT_HIDDEN = "‹text›"
_SECRET_HIDDEN = "‹secret›"  # noqa: S105 - it stands for one

_PEM = re.compile(r"-----BEGIN [^-]+-----(?:(?!-----END).){0,8192}(?:-----END [^-]+-----)?", re.DOTALL)
_SECRETS = (
    re.compile(
        r"(?i)((?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?)(?:(?:bearer|basic|digest|token|negotiate)\s+)?[^\s\"',;}]+"
    ),
    re.compile(r"(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}"),
    re.compile(r"(?i)((?:set-)?cookie[\"']?\s*[:=]\s*)[^\r\n\"']+"),
    re.compile(r"([a-z][a-z0-9+.-]*://)[^/\s\"'@<>]+(?=@)", re.IGNORECASE),
    re.compile(
        rf"(?i)((?<![\w.-])(?!(?:{NOT_SECRET.pattern})\b)(?:{_SENSITIVE})[\"']?\s*[:=]\s*[\"']?)(?!‹)[^\s\"',;}}\]&]+"
    ),
    re.compile(rf"(?i)(--{_SENSITIVE}(?:\s+|=)[\"']?)(?!‹)[^\s\"',]+"),
    re.compile(
        r"()\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{12,}"
        r"|xox[abprs]-[\w-]{8,}|nvapi-[\w-]{12,}|AKIA[0-9A-Z]{12,}|AIza[\w-]{20,}|pypi-[\w-]{16,})"
    ),
    re.compile(r"()\beyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?"),
    re.compile(r"((?:ssh-(?:ed25519|rsa|dss)|ecdsa-sha2-\S+)\s+)[A-Za-z0-9+/=]{16,}"),
)
"""Each keeps its first group."""
_TEXTS = (
    re.compile(
        rf"(?i)((?<![\w])[\"']?(?:{TEXT_KEY.pattern})[\"']?\s*[:=]\s*)(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\[[^\]]*\]?)"
    ),
)
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)")
_IPV6 = re.compile(
    r"(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}(?:[0-9a-f]{1,4}|(?:\d{1,3}\.){3}\d{1,3})?(?![\w:])", re.IGNORECASE
)
_MAC = re.compile(r"(?<![\w:-])(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}(?![\w:-])", re.IGNORECASE)
_UUID = re.compile(r"(?<![\w-])(?:GPU-|MIG-)?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![\w-])", re.IGNORECASE)
_HOME = re.compile(r"(?<=/home/)[\w.-]+")
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*")
_TLDS = (
    "com|org|net|edu|gov|mil|int|info|biz|io|ai|dev|app|cloud|internal|intern|local|localdomain|lan|corp|home|private|example|test"
    "|invalid|arpa|eu|uk|us|de|fr|nl|be|ch|at|it|es|pt|se|no|fi|dk|pl|cz|ru|cn|jp|kr|in|au|nz|ca|br|mx|il|sg|hk|tw|ie|za|tech|online"
)
_DOMAIN = re.compile(rf"(?<![\w.@/-])(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+(?:{_TLDS})(?![\w-]|\.\w)", re.IGNORECASE)
_URL_HOST = re.compile(r"(?<=://)(?!‹)[A-Za-z0-9][A-Za-z0-9.-]*(?=[:/\s\"',)\]}]|$)")
_LONG = re.compile(
    r"(?<![\w+/=-])(?:sha256:)?(?=[A-Za-z0-9+/=_-]*\d)(?=[A-Za-z0-9+/=_-]*[A-Za-z])[A-Za-z0-9+/=_-]{32,}"
)
"""Long words of letters and digits: keys of a form that is not known, digests of texts."""


@dataclass(slots=True)
class Asked:
    """What the operator wants left in."""

    names: bool = False
    """Names of hosts, users, tenants, fleets."""
    addresses: bool = False
    """IP and hardware addresses."""
    messages: bool = False
    """Whole messages of engines."""


@dataclass
class Redactor:
    """Redacts texts and documents of one bundle, and counts what it did by kind."""

    asked: Asked
    names: dict[str, str] = field(default_factory=dict)
    """Kind of each name that is known."""
    secrets: set[str] = field(default_factory=set)
    """Secrets that are known: they go wherever they stand."""
    counts: Counter[str] = field(default_factory=Counter)
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _known: re.Pattern[str] | None = None
    _hidden: re.Pattern[str] | None = None

    def learn(self, names: Mapping[str, str], found: Iterable[str] = ()) -> None:
        """Know further names, by kind, and further secrets. Words that name nobody are passed over."""
        self.names |= {name: kind for name, kind in names.items() if name and name.lower() not in _COMMON}
        self.secrets |= {secret.strip() for secret in found if len(secret.strip()) >= 4}
        self._known, self._hidden = _any_of(self.names, bounded=True), _any_of(self.secrets, bounded=False)

    def pseudonym(self, kind: str, value: str) -> str:
        """The name that stands for another in this bundle."""
        self.counts[kind] += 1
        return f"{kind}-{hmac.new(self._key, value.lower().encode(), hashlib.sha256).hexdigest()[:8]}"

    def text(self, text: str) -> str:
        """A text without what has to go."""
        text = self._sub(_PEM, text, lambda m: self._gone("secret", _SECRET_HIDDEN))
        if self._hidden is not None:
            text = self._sub(self._hidden, text, lambda m: self._gone("secret", _SECRET_HIDDEN))
        for pattern in _SECRETS:
            text = self._sub(pattern, text, lambda m: m[1] + self._gone("secret", _SECRET_HIDDEN))
        for pattern in _TEXTS:
            text = self._sub(pattern, text, lambda m: m[1] + self._gone("text", f'"{_TEXT_HIDDEN}"'))
        if not self.asked.names:
            text = self._without_names(text)
        if not self.asked.addresses:
            text = self._without_addresses(text)
        return self._sub(_LONG, text, lambda m: self.pseudonym("id", m[0]))

    def _without_names(self, text: str) -> str:
        text = self._sub(_HOME, text, lambda m: self.pseudonym("user", m[0]))
        text = self._sub(_EMAIL, text, lambda m: self.pseudonym("user", m[0]))
        text = self._sub(re.compile(r'(?<=tenant=")[^"]+'), text, lambda m: self._tenant(m[0]))
        if self._known is not None:
            text = self._sub(self._known, text, lambda m: self.pseudonym(self.names[m[0]], m[0]))
        text = self._sub(_DOMAIN, text, lambda m: self.pseudonym("host", m[0]))
        return self._sub(_URL_HOST, text, self._url_host)

    def _without_addresses(self, text: str) -> str:
        text = self._sub(_UUID, text, lambda m: self.pseudonym("id", m[0]))
        text = self._sub(_MAC, text, lambda m: self.pseudonym("mac", m[0]))
        text = self._sub(_IPV4, text, self._address)
        return self._sub(_IPV6, text, self._address)

    def _tenant(self, name: str) -> str:
        return name if name in _COMMON else self.pseudonym("tenant", name)

    def _url_host(self, match: re.Match[str]) -> str:
        host = match[0]
        known = host.lower() in _COMMON or _IPV4.fullmatch(host) or re.fullmatch(r"[a-z]+-[0-9a-f]{8}", host)
        return host if known else self.pseudonym("host", host)

    def _address(self, match: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(match[0])
        except ValueError:
            return match[0]
        return match[0] if address.is_loopback or address.is_unspecified else self.pseudonym("ip", str(address))

    def _gone(self, kind: str, mark: str) -> str:
        self.counts[kind] += 1
        return mark

    @staticmethod
    def _sub(pattern: re.Pattern[str], text: str, by: Callable[[re.Match[str]], str]) -> str:
        return pattern.sub(by, text)

    def document(self, value: Any, key: str = "") -> Any:
        """A JSON document without what has to go: by its keys, and each of its strings as a text."""
        if isinstance(value, Mapping) and key == "env":  # what engines are started with may be anything
            return {
                name: self._gone("secret", _SECRET_HIDDEN) if isinstance(each, str) else self.document(each)
                for name, each in value.items()
            }
        if isinstance(value, Mapping):
            return {self.text(str(name)): self.document(each, str(name)) for name, each in value.items()}
        if isinstance(value, list):
            return [self.document(each, key) for each in value]
        if not isinstance(value, str):
            hidden = isinstance(value, int) and not isinstance(value, bool) and TEXT_KEY.fullmatch(key)
            return self._gone("text", _TEXT_HIDDEN) if hidden else value
        return self._string(value, key)

    def _string(self, value: str, key: str) -> str:
        if not value:
            return value
        if SENSITIVE_KEY.fullmatch(key) and not NOT_SECRET.fullmatch(key):
            return self._gone("secret", _SECRET_HIDDEN)
        if key in NAME_KEYS and not self.asked.names:
            return value if value.lower() in _COMMON else self.pseudonym(NAME_KEYS[key], value)
        if TEXT_KEY.fullmatch(key):
            return self._gone("text", _TEXT_HIDDEN)
        return self.text(value)


def _any_of(words: Iterable[str], *, bounded: bool) -> re.Pattern[str] | None:
    """Any of some words, the longest first; `bounded`: as words of their own, short ones before an engine's number."""
    ordered = sorted(words, key=len, reverse=True)
    if not ordered:
        return None
    if not bounded:
        return re.compile("|".join(map(re.escape, ordered)))
    short = [re.escape(word) for word in ordered if len(word) < 3]
    long = [re.escape(word) for word in ordered if len(word) >= 3]
    parts = [rf"(?<![\w-])(?:{'|'.join(long)})(?![\w-])"] if long else []
    parts += [rf"(?<![\w-])(?:{'|'.join(short)})(?=/\d)", rf"\A(?:{'|'.join(short)})\Z"] if short else []
    return re.compile("|".join(parts))
