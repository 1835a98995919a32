"""The simulated model: the next token is a fixed function of the seed and of the KV of all tokens before it.

Whether those tokens are a prompt or an answer makes no difference, as on a real engine: one that is given a prompt and
half of its answer goes on with the other half. Any other content in any block leads to other tokens.

Answers are English words, and to a prompt that holds characters of several bytes also such characters. Each byte is a
token, so an answer may be broken off inside a character.
"""

from collections.abc import Sequence
from hashlib import blake2b

from narwhal.engine.simulated.tokenizer import WORD_TOKENS

_BYTES = 8
LEAST_NATURAL_TOKENS = 32
MOST_NATURAL_TOKENS = 255
MULTI_BYTE = frozenset(range(0x80, 0x100))
"""Tokens that are parts of characters of several bytes."""
CHARACTERS = tuple(character.encode() for character in "éßж世…€🌊🙂")
"""Characters of two to four bytes that answers hold."""


class Model:
    """The model in the middle of one sequence."""

    __slots__ = ("_blocks", "_multi_byte", "_own", "state")

    def __init__(self, prompt: Sequence[int], contents: Sequence[bytes], block_tokens: int, own: bytes) -> None:
        """After `prompt`, whose blocks hold `contents`; `own`: what else the answer depends on."""
        full = len(prompt) // block_tokens
        self._own = own
        self._blocks = blake2b(b"".join(contents[:full]), digest_size=_BYTES)
        self._multi_byte = not MULTI_BYTE.isdisjoint(prompt)
        self.state = self._block_state()
        for token in prompt[full * block_tokens :]:
            self.state = _next_state(self.state, token)

    def add(self, token: int) -> None:
        """One more token is known, which fills no block."""
        self.state = _next_state(self.state, token)

    def fill(self, content: bytes) -> None:
        """One more token is known, which fills a block; its content now is this."""
        self._blocks.update(content)
        self.state = self._block_state()

    def choose(self, before: Sequence[int]) -> int:
        """The next token, after the (at least three) known ones that stand `before` it."""
        part = _character_token(self.state, before) if self._multi_byte else None
        return token_of(self.state) if part is None else part

    def _block_state(self) -> bytes:
        found = self._blocks.copy()
        found.update(self._own)
        return found.digest()


def _next_state(state: bytes, token: int) -> bytes:
    return blake2b(state + token.to_bytes(4, "little"), digest_size=_BYTES).digest()


def token_of(state: bytes) -> int:
    """The word that a state chooses."""
    return WORD_TOKENS[int.from_bytes(state[:4], "little") % len(WORD_TOKENS)]


def _character_token(state: bytes, before: Sequence[int]) -> int | None:
    """The next byte of the character that the tokens `before` begin, or the first of one that the state chooses.

    None: the state chooses a word.
    """
    begun = unfinished(before)
    if begun:
        return next((c[len(begun)] for c in CHARACTERS if len(c) > len(begun) and c.startswith(begun)), None)
    return CHARACTERS[state[6] % len(CHARACTERS)][0] if state[4] < 64 else None


def unfinished(tokens: Sequence[int]) -> bytes:
    """The bytes of the character that the last tokens begin and do not end; empty when there is none."""
    part = b""
    for token in reversed(tokens[-3:]):
        if token not in MULTI_BYTE:
            return b""
        part = bytes([token]) + part
        if token >= 0xC0:
            return part if len(part) < (4 if token >= 0xF0 else 3 if token >= 0xE0 else 2) else b""
    return b""


def logprob_of(state: bytes) -> float:
    """A plausible log-probability of the chosen token: between -2.5 and 0."""
    return -round(state[4] / 102, 4)


def natural_tokens(state: bytes) -> int:
    """Length of an answer that nobody limits, the end token included; `state` is that where it begins."""
    return LEAST_NATURAL_TOKENS + int.from_bytes(state[5:7], "little") % (MOST_NATURAL_TOKENS - LEAST_NATURAL_TOKENS)
