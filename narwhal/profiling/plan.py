"""Which cells a sweep measures: lengths, cached prefixes, batches, handoffs; never more than the engine holds."""

from dataclasses import dataclass

from narwhal.profiling.facts import EngineFacts


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells of one engine, and how often each is measured."""

    prefill: tuple[tuple[int, int], ...]
    """(prompt tokens, of them cached)."""
    decode: tuple[tuple[int, int], ...]
    """(requests, prompt tokens)."""
    transfer: tuple[int, ...]
    """Prompt tokens, for each directed pair."""
    repeats: int
    decode_tokens: int
    """Tokens that each stream of a decode cell produces."""

    @property
    def cells(self) -> int:
        """How many cells there are, handoffs left out."""
        return len(self.prefill) + len(self.decode)


def plan_sweep(facts: EngineFacts, *, max_model_len: int, max_num_seqs: int, short: bool = False) -> Plan:
    """The cells for an engine. `short` is for `narwhal dev`: about a quarter of the time, and a coarser curve."""
    tokens = 32 if short else 96
    longest = min(max_model_len, facts.kv_capacity_tokens) - 2
    lengths = _geometric(64, longest, 5 if short else 10)
    cached = _cached(lengths, facts.block_tokens) if facts.prefix_caching and not short else []
    most = min(max_num_seqs, 256)
    batches = sorted({1, *((max(most // 4, 1),) if short else (4, 16, 64)), most})
    contexts = [length for length in ((64, 1024) if short else (128, 1024, 4096)) if length + tokens <= max_model_len]
    decode = [
        (requests, context)
        for context in contexts or [max(longest - tokens, 16)]
        for requests in batches
        if requests <= most and requests * (context + tokens) <= 0.9 * facts.kv_capacity_tokens
    ]
    return Plan(
        prefill=tuple([(length, 0) for length in lengths] + cached),
        decode=tuple(decode),
        transfer=tuple(_geometric(min(facts.block_tokens * 2, longest), min(longest, 8192), 3 if short else 6)),
        repeats=2 if short else 5,
        decode_tokens=tokens,
    )


def _geometric(first: int, last: int, count: int) -> list[int]:
    """At most `count` whole numbers from first to last, each the same multiple of the one before."""
    if last <= first:
        return [max(last, 1)]
    ratio = (last / first) ** (1 / (count - 1))
    return sorted({round(first * ratio**i) for i in range(count)})


def _cached(lengths: list[int], block_tokens: int) -> list[tuple[int, int]]:
    """A half and seven eighths cached, in whole blocks, of the longer prompts."""
    cells = []
    for length in lengths[len(lengths) // 2 :: 2]:
        for share in (0.5, 0.875):
            cached = int(length * share) // block_tokens * block_tokens
            if cached:
                cells.append((length, cached))
    return cells
