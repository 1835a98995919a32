"""Prompts of exact lengths: as token ids, or as text of words that the served tokenizer takes for one token each.

No two prompts begin alike, so that no prefix cache helps, but where a shared prefix is asked for.
"""

import http.client
import json
import random
import ssl
from collections.abc import Callable, Sequence
from typing import Protocol

from narwhal.fleet.model import SharedPrefix
from narwhal.measure.errors import BenchError

FIRST_ID, LAST_ID = 100, 1900
"""Token ids of the prompts: above special ids, below the vocabulary of the smallest model tested against."""
_BLOCK = 65536
_PROBES = (8, 40)
"""Words in the texts that tell the tokens around them."""
WORDS = (
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state"),
    *("family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system"),
    *("program", "question", "work", "government", "number", "night", "point", "home", "water", "room", "mother"),
    *("area", "money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business"),
    *("issue", "side", "kind", "head", "house", "service", "friend", "father", "power", "hour", "game", "line", "end"),
)
"""Common words; those are used that add one token each."""
_FEWEST_WORDS = 16

Count = Callable[[str], int]
"""Tokens of a prompt of this text, with whatever the server adds to it."""


class Prompts(Protocol):
    """Makes the prompts of a load."""

    def fitted(self, tokens: int) -> int:
        """The length nearest to this that a prompt can have, in tokens."""

    def field(self, number: int, tokens: int) -> str:
        """The prompt of request `number` with `tokens` tokens, as the body's field that holds it: `"prompt":[1,2]`."""


class IdPrompts:
    """Token ids: slices of one block of random ones, already written as JSON."""

    def __init__(self, seed: int, shared: SharedPrefix | None = None) -> None:
        rng = random.Random(seed)  # noqa: S311 - reproducible prompts
        self._ids = [str(rng.randint(FIRST_ID, LAST_ID)) for _ in range(_BLOCK)]
        self._rng = rng
        self._prefixes = [self._drawn(shared.tokens) for _ in range(shared.groups)] if shared else [[]]

    def fitted(self, tokens: int) -> int:
        """Any length can be had."""
        return tokens

    def field(self, number: int, tokens: int) -> str:
        """`tokens` ids; after the shared ones, if any, the first two spell `number`."""
        span = LAST_ID - FIRST_ID + 1
        prefix = self._prefixes[number % len(self._prefixes)]
        head = [*prefix, str(FIRST_ID + number % span), str(FIRST_ID + number // span % span)][:tokens]
        return f'"prompt":[{",".join(head + self._drawn(tokens - len(head)))}]'

    def _drawn(self, tokens: int) -> list[str]:
        drawn: list[str] = []
        while len(drawn) < tokens:
            start = self._rng.randrange(_BLOCK)
            drawn += self._ids[start : start + tokens - len(drawn)]
        return drawn


class TextPrompts:
    """Text of words that are one token each, with `around` tokens that the server adds."""

    def __init__(
        self, words: Sequence[str], around: int, seed: int, *, chat: bool, shared: SharedPrefix | None = None
    ) -> None:
        self._words, self._around, self._chat = words, around, chat
        self._rng = random.Random(seed)  # noqa: S311 - reproducible prompts
        length = max(shared.tokens - around, 0) if shared else 0
        self._prefixes = [self._rng.choices(words, k=length) for _ in range(shared.groups if shared else 1)]

    def fitted(self, tokens: int) -> int:
        """At least one word, beside what the server adds."""
        return max(tokens, self._around + 1)

    def field(self, number: int, tokens: int) -> str:
        """Words; after the shared ones, if any, the first four spell `number`."""
        count, base = tokens - self._around, len(self._words)
        spelled = [self._words[number // base**digit % base] for digit in range(4)]
        head = [*self._prefixes[number % len(self._prefixes)], *spelled][:count]
        text = " ".join([*head, *self._rng.choices(self._words, k=count - len(head))])
        return f'"messages":[{{"role":"user","content":"{text}"}}]' if self._chat else f'"prompt":"{text}"'


def text_prompts(count: Count, seed: int, *, chat: bool, shared: SharedPrefix | None) -> TextPrompts:
    """Prompts for a server whose tokenizer is asked by `count`. Raises `BenchError` when too few words fit."""
    start = "time time"
    base = count(start)
    words = [word for word in WORDS if count(f"{start} {word} {word}") == base + 2]
    if len(words) < _FEWEST_WORDS:
        text = f"the served tokenizer takes {len(words)} of {len(WORDS)} common words for one token"
        raise BenchError("tokenizer", text, "use `prompts: ids` with `endpoint: completions`")
    around = {count(" ".join((words * length)[:length])) - length for length in _PROBES}
    if len(around) != 1:
        hint = "use `prompts: ids` with `endpoint: completions`"
        raise BenchError("tokenizer", "the served tokenizer adds up differently in longer texts", hint)
    return TextPrompts(words, around.pop(), seed, chat=chat, shared=shared)


def served_count(
    host: str, port: int, model: str, *, api_key: str = "", tls: ssl.SSLContext | None = None, chat: bool
) -> Count:
    """Counts by `/tokenize` of a server, as a completion's prompt or as a chat of one message."""

    def count(text: str) -> int:
        content = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
        try:
            connection = (
                http.client.HTTPSConnection(host, port, timeout=30, context=tls)
                if tls
                else http.client.HTTPConnection(host, port, timeout=30)
            )
            connection.request("POST", "/tokenize", json.dumps({"model": model, **content}), headers)
            answer = connection.getresponse()
            data = answer.read()
            connection.close()
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise BenchError(
                "tokenizer", f"/tokenize does not answer: {reason}", "does it serve?", failed=True
            ) from None
        if answer.status != http.client.OK:
            hint = "use `prompts: ids` with `endpoint: completions`"
            raise BenchError("tokenizer", f"/tokenize answers {answer.status}", hint, failed=True)
        return int(json.loads(data)["count"])

    return count
