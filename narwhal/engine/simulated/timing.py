"""How long a step takes, from the curves of a profile."""

from dataclasses import dataclass

from narwhal.fleet import Profile


@dataclass(slots=True)
class Load:
    """What one step works on."""

    prefill_tokens: int = 0
    attention_token2: int = 0
    """Sum of (end² - start²) over the chunks of prompts."""
    streams: int = 0
    """Requests that decode."""
    kv_tokens: int = 0
    """KV that the decoding requests read."""

    def add_chunk(self, start: int, tokens: int) -> None:
        """Add `tokens` of a prompt, from its token number `start` on."""
        self.prefill_tokens += tokens
        self.attention_token2 += (start + tokens) ** 2 - start**2

    def add_stream(self, kv_tokens: int) -> None:
        """Add one decoding request, with the KV that it reads."""
        self.streams += 1
        self.kv_tokens += kv_tokens


def step_s(profile: Profile, load: Load) -> float:
    """Seconds of a step at speed 1.

    Without prompts `d0 + d1·streams + d2·kv`. With prompts `max(t_min, a + max(b·tokens, d0 - a if streams) +
    c·attention + d1·streams + d2·kv)`: weights are read once for both, so d0 hides in the prefill and the rest adds
    up. `narwhal.simulate` computes the same, so that both simulations tell the same story.
    """
    prefill, decode = profile.prefill, profile.decode
    streams_s = decode.d1_s * load.streams + decode.d2_s * load.kv_tokens
    if not load.prefill_tokens:
        return decode.d0_s + streams_s
    dense_s = prefill.b_s_per_token * load.prefill_tokens
    if load.streams:
        dense_s = max(dense_s, decode.d0_s - prefill.a_s)
    attention_s = prefill.c_s_per_token2 * load.attention_token2
    return max(prefill.t_min_s, prefill.a_s + dense_s + attention_s + streams_s)


def transfer_s(profile: Profile, kv_bytes: int, bandwidth_bytes_per_s: float) -> float:
    """Seconds to hand over `kv_bytes` at speed 1."""
    return profile.transfer.t0_s + kv_bytes / bandwidth_bytes_per_s
