"""How fast an engine is, as numbers to decide with."""

import msgspec

from narwhal.fleet.profile import Profile


class Curves(msgspec.Struct, frozen=True):
    """An engine's speed and room. Formulas as in the `Profile` document; times in seconds."""

    t_min_s: float
    a_s: float
    b_s: float
    """Seconds per prompt token."""
    c_s: float
    """Seconds per prompt token squared."""
    d0_s: float
    d1_s: float
    """Seconds per request in the batch."""
    d2_s: float
    """Seconds per token of KV in the batch."""
    transfer_t0_s: float
    transfer_bytes_per_s: float
    kv_bytes_per_token: int
    kv_capacity_tokens: int
    max_num_seqs: int
    chunk_tokens: int
    """Most tokens in one step (`max_num_batched_tokens`)."""

    @classmethod
    def from_profile(cls, profile: Profile) -> "Curves":
        """The curves that a `Profile` document describes."""
        return cls(
            t_min_s=profile.prefill.t_min_s,
            a_s=profile.prefill.a_s,
            b_s=profile.prefill.b_s_per_token,
            c_s=profile.prefill.c_s_per_token2,
            d0_s=profile.decode.d0_s,
            d1_s=profile.decode.d1_s,
            d2_s=profile.decode.d2_s,
            transfer_t0_s=profile.transfer.t0_s,
            transfer_bytes_per_s=profile.transfer.bandwidth_bytes_per_s,
            kv_bytes_per_token=profile.kv_bytes_per_token,
            kv_capacity_tokens=profile.kv_capacity_tokens,
            max_num_seqs=profile.max_num_seqs,
            chunk_tokens=profile.max_num_batched_tokens,
        )

    def prefill_s(self, prompt_tokens: int, cached_tokens: int = 0) -> float:
        """Seconds to prefill a prompt of which `cached_tokens` are in the engine's cache.

        The cached form charges the difference of the whole prompt and its prefix, so attention over the prefix is
        still paid for.
        """
        n, k = prompt_tokens, cached_tokens if cached_tokens < prompt_tokens else prompt_tokens
        seconds = self.a_s + self.b_s * (n - k) + self.c_s * (n * n - k * k)
        return seconds if seconds > self.t_min_s else self.t_min_s

    def interval_s(self, requests: int, kv_tokens: int) -> float:
        """Seconds between two tokens of each stream, for a batch of `requests` that holds `kv_tokens` of KV."""
        return self.d0_s + self.d1_s * requests + self.d2_s * kv_tokens

    def transfer_s(self, prompt_tokens: int) -> float:
        """Seconds to hand the KV of a prompt over."""
        return self.transfer_t0_s + prompt_tokens * self.kv_bytes_per_token / self.transfer_bytes_per_s

    def occupancy(self, streams: float, kv_tokens: float, tpot_s: float) -> float:
        """How full a decode engine is: its tightest of sequences, KV room and room under the TPOT target (1: full).

        The term of the target is left out where the empty interval exceeds it already (a validation error in a
        fleet file with profiles): no split would help.
        """
        binding = streams / self.max_num_seqs  # spelled out: this runs for each engine of each placement
        room = kv_tokens / self.kv_capacity_tokens
        if room > binding:
            binding = room
        room_s = tpot_s - self.d0_s
        if room_s > 0:
            pace = (self.d1_s * streams + self.d2_s * kv_tokens) / room_s
            if pace > binding:
                binding = pace
        return binding

    def share(self, streams: float, kv_tokens: float, own_kv_tokens: float, tpot_s: float) -> float:
        """What one stream with `own_kv_tokens` adds, in the term that binds a batch of `streams` and `kv_tokens`."""
        n, kv = streams + 1, kv_tokens + own_kv_tokens  # spelled out: this runs twice for each request
        seats, room = n / self.max_num_seqs, kv / self.kv_capacity_tokens
        room_s = tpot_s - self.d0_s
        pace = (self.d1_s * n + self.d2_s * kv) / room_s if room_s > 0 else 0.0
        if seats >= room and seats >= pace:
            return 1 / self.max_num_seqs
        if room >= pace:
            return own_kv_tokens / self.kv_capacity_tokens
        return (self.d1_s + self.d2_s * own_kv_tokens) / room_s
