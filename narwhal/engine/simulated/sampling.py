"""The simulated model: the next token is a fixed function of the KV contents, the seed, and the tokens so far."""

from collections.abc import Iterable
from hashlib import blake2b

from narwhal.engine.simulated.tokenizer import WORD_TOKENS

STATE_BYTES = 8
LEAST_NATURAL_TOKENS = 32
MOST_NATURAL_TOKENS = 255


def first_state(contents: Iterable[bytes], seed: int) -> bytes:
    """The state of a request whose KV is `contents`. Any other content anywhere gives another state."""
    return blake2b(b"".join(contents) + seed.to_bytes(8, "little", signed=True), digest_size=STATE_BYTES).digest()


def next_state(state: bytes) -> bytes:
    """The state after one more token."""
    return blake2b(state, digest_size=STATE_BYTES).digest()


def token_of(state: bytes) -> int:
    """The token that a state chooses: always a word."""
    return WORD_TOKENS[int.from_bytes(state[:4], "little") % len(WORD_TOKENS)]


def logprob_of(state: bytes) -> float:
    """A plausible log-probability of the chosen token: between -2.5 and 0."""
    return -round(state[4] / 102, 4)


def natural_tokens(state: bytes) -> int:
    """Length of an answer that nobody limits, the end token included."""
    return LEAST_NATURAL_TOKENS + int.from_bytes(state[5:7], "little") % (MOST_NATURAL_TOKENS - LEAST_NATURAL_TOKENS)
