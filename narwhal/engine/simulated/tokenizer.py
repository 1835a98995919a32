"""The tokenizer: bytes, common words with and without a leading space, and pairs of letters.

Every byte is a token of its own, so any text goes through `encode` and `decode` unchanged. English takes about one
token for four bytes. The vocabulary is fixed by this file: all simulated engines agree on it.
"""

import re
from collections.abc import Iterable

from narwhal.engine.simulated.vocabulary import PIECES as WORD_PIECES
from narwhal.engine.simulated.vocabulary import WORDS

EOS = 256
"""Token that ends an answer; it has no text."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SPLIT = re.compile(rb" ?[A-Za-z]+|[^A-Za-z ]| ")


def _build() -> list[bytes]:
    pieces = [bytes([value]) for value in range(256)] + [b""]
    words = list(dict.fromkeys(word for word in WORDS if len(word) > 1))
    pieces += [f" {word}".encode() for word in words]
    pieces += [word.encode() for word in words if len(word) > 2]
    pieces += [piece.encode() for piece in WORD_PIECES]
    pieces += [f" {letter}".encode() for letter in _LETTERS]
    pieces += [f"{first}{second}".encode() for first in _LETTERS for second in _LETTERS]
    return list(dict.fromkeys(pieces))


PIECES: list[bytes] = _build()
"""The bytes of each token, by id."""
VOCABULARY_SIZE = len(PIECES)
WORD_TOKENS: list[int] = [
    token for token, piece in enumerate(PIECES) if len(piece) > 2 and piece.startswith(b" ")
]  # what answers are made of

_IDS = {piece: token for token, piece in enumerate(PIECES)}
_LONGEST = max(len(piece) for piece in PIECES)
_known: dict[bytes, list[int]] = {}


def encode(text: str) -> list[int]:
    """The tokens of a text."""
    tokens: list[int] = []
    for word in _SPLIT.findall(text.encode("utf-8", "surrogatepass")):
        known = _known.get(word)
        if known is None:
            known = _encode_word(word)
            if len(_known) < 20_000:
                _known[word] = known
        tokens += known
    return tokens


def decode(tokens: Iterable[int]) -> str:
    """The text of tokens; bytes that are not UTF-8 become U+FFFD. Raises `IndexError` for an unknown token."""
    return b"".join([PIECES[token] for token in tokens]).decode("utf-8", "replace")


def _encode_word(word: bytes) -> list[int]:
    tokens = []
    start = 0
    while start < len(word):
        end = min(len(word), start + _LONGEST)
        while word[start:end] not in _IDS:
            end -= 1
        tokens.append(_IDS[word[start:end]])
        start = end
    return tokens
