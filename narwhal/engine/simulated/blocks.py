"""The KV cache: blocks with contents, held by requests, found again by prefix, and reused when nobody holds them.

A block's content stands for the KV bytes of a real block: a digest of its tokens and of all tokens before them.
Contents are what an answer is computed from and what travels in a handoff. So a block that was reused, lost or
corrupted leads to another answer, as it does on a real engine.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

CONTENT_BYTES = 8
Key = tuple[str, bytes]
"""How a full block is found again: the cache salt, and the content it was computed with."""


def next_content(previous: bytes, tokens: Sequence[int]) -> bytes:
    """The content of a block with `tokens`, after a block with the content `previous` (b"" before the first)."""
    data = b"".join([token.to_bytes(4, "little") for token in tokens])
    return blake2b(previous + data, digest_size=CONTENT_BYTES).digest()


def contents_of(tokens: Sequence[int], block_tokens: int) -> list[bytes]:
    """The contents of all blocks of `tokens`; the last block may be partly filled."""
    contents = []
    previous = b""
    for start in range(0, len(tokens), block_tokens):
        previous = next_content(previous, tokens[start : start + block_tokens])
        contents.append(previous)
    return contents


class BlockPool:
    """All blocks of an engine. Freed blocks keep content and key until they are taken again, oldest first."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(count))
        self._holders = [0] * count
        self._contents = [bytes(CONTENT_BYTES)] * count
        self._keys: list[Key | None] = [None] * count
        self._cached: dict[Key, int] = {}
        self._shown: dict[int, bytes] = {}

    @property
    def free_count(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def take(self, count: int) -> list[int] | None:
        """Hold `count` blocks that nobody holds, forgetting what was in them; None when there are fewer."""
        if count > len(self._free):
            return None
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._holders[block] = 1
            self._shown.pop(block, None)
            key = self._keys[block]
            if key is not None:
                self._keys[block] = None
                if self._cached.get(key) == block:
                    del self._cached[key]
        return taken

    def find(self, salt: str, contents: Sequence[bytes]) -> list[int]:
        """Blocks that already hold the longest prefix of `contents`; nothing is held by asking."""
        found = []
        for content in contents:
            block = self._cached.get((salt, content))
            if block is None:
                break
            found.append(block)
        return found

    def free_among(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` nobody holds."""
        return sum(1 for block in blocks if not self._holders[block])

    def hold(self, blocks: Iterable[int]) -> None:
        """Hold blocks that `find` named."""
        for block in blocks:
            if not self._holders[block]:
                del self._free[block]
            self._holders[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of blocks, the last first: a prefix outlives what follows it."""
        for block in reversed(blocks):
            assert self._holders[block] > 0
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free[block] = None

    def write(self, block: int, content: bytes, key: Key | None = None) -> None:
        """Put KV into a held block; with `key` it can be found again."""
        self._contents[block] = content
        if key is not None and self._keys[block] is None:
            self._keys[block] = key
            self._cached.setdefault(key, block)

    def read(self, blocks: Iterable[int]) -> list[bytes]:
        """The contents of blocks, held or not: a late reader gets whatever is there by now."""
        return [self._contents[block] for block in blocks]

    def show(self, block: int, content: bytes | None) -> None:
        """Show peers another content: that of a prompt's end where the answer goes on in the block. None: no more."""
        if content is None:
            self._shown.pop(block, None)
        else:
            self._shown[block] = content

    def read_for_peer(self, blocks: Iterable[int]) -> list[bytes]:
        """What peers are shown of blocks."""
        return [self._shown.get(block, self._contents[block]) for block in blocks]
