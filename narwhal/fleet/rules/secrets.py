"""NW008: secrets in plain text, wherever free text is allowed."""

import re
from collections.abc import Iterator
from typing import Any

from narwhal.fleet.draft import Draft
from narwhal.fleet.facts import Facts
from narwhal.fleet.finding import Path
from narwhal.fleet.rules.rule import Hit, rule

_LOOKS_LIKE_A_KEY = re.compile(
    r"(?:^|[^A-Za-z0-9])(?:sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16}"
    r"|xox[abp]-[A-Za-z0-9-]{10,}|eyJ[A-Za-z0-9_-]{10,}\.eyJ)|-----BEGIN [A-Z ]*PRIVATE KEY-----|://[^/\s:@]+:[^/\s@]+@"
)
_NAMED_LIKE_A_KEY = re.compile(
    r"(?:^|[_-])(?:token|secret|password|passwd|api[_-]?key|private[_-]?key)$", re.IGNORECASE
)


@rule(
    "NW008",
    "secret in plain text",
    means="The file holds a key, token or password. It is meant for git, so the secret is known to all who read it.",
    fix="Replace the secret, keep it in a file or variable, and write `{file: /path}` or `{env: NAME}`.",
)
def no_secrets_in_plain_text(facts: Facts) -> Iterator[Hit]:
    """No text looks like a key; no engine argument or variable is named like one and has a value."""
    for path, value in _texts(facts.fleet._raw if isinstance(facts.fleet, Draft) else {}, ()):
        free = path[:1] == ("engines",) and len(path) > 1 and path[-2] in ("args", "env")
        named = free and _NAMED_LIKE_A_KEY.search(str(path[-1])) is not None
        if not _is_secret(path) and (_LOOKS_LIKE_A_KEY.search(value) or (named and value)):
            text = f"{path[-1]} holds what looks like a secret"
            yield Hit(path, text, "no secret in the file", "***")


def _is_secret(path: Path) -> bool:
    """Whether the schema wants a secret's place here: then it has found the plain text already."""
    if path[:3] == ("routers", "admin", "tokens"):
        return path[4:5] == ("token",)
    return path[:2] == ("engines", "api_key") or (path[:2] == ("routers", "tenants") and "keys" in path)


def _texts(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _texts(item, (*path, i))
