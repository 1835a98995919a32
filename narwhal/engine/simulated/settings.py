"""What a simulated engine is started with."""

from dataclasses import dataclass

from narwhal.fleet import Profile


class SettingsError(ValueError):
    """Settings that cannot work together; the message says which and what to change."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Addresses, model, timing and limits of one simulated engine."""

    profile: Profile
    host: str = "127.0.0.1"
    port: int = 8100
    """HTTP port; 0 lets the system choose."""
    side_channel_host: str | None = None
    """Address that peers reach it by; default: `host`."""
    side_channel_port: int = 5600
    """Port that peers fetch KV from; 0 lets the system choose."""
    model: str = "simulated"
    aliases: tuple[str, ...] = ()
    """Further names of the model."""
    speed: float = 1.0
    """Factor on all speeds: 2 halves every time."""
    max_model_len: int = 16384
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    kv_lease_s: float = 30.0
    bandwidth_bytes_per_s: float | None = None
    """Bandwidth of handoffs; default: the profile's, times `speed`."""
    handshake_timeout_s: float = 5.0
    """How long an engine tries to reach a peer that it never met."""
    stream_interval: int = 1
    """Tokens in a chunk of a stream."""
    max_num_queued_reqs: int | None = None
    """Most requests, running and waiting; one more gets 503."""
    shutdown_timeout_s: float = 0.0
    """How long running requests may go on after SIGTERM."""
    keep_alive_s: float = 5.0
    """How long an idle connection stays open."""
    prompt_tokens_details: bool = False
    """Tell in `usage` how many tokens of the prompt were cached."""
    request_id_headers: bool = False
    """Answer with the header X-Request-Id."""
    faults: tuple[str, ...] = ()
    """Faults from the start on, as JSON objects."""

    def check(self) -> None:
        """Raise `SettingsError` when the longest request cannot fit into the KV cache."""
        room_tokens = self.profile.kv_capacity_tokens // self.profile.block_tokens * self.profile.block_tokens
        if self.max_model_len > room_tokens:
            raise SettingsError(
                f"--max-model-len {self.max_model_len} exceeds the KV cache of profile {self.profile.name} "
                f"({room_tokens} tokens in whole blocks); lower --max-model-len"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the model, the first being the one on metrics."""
        return (self.model, *self.aliases)

    @property
    def peer_host(self) -> str:
        """Address that peers reach it by."""
        return self.side_channel_host or ("127.0.0.1" if self.host in {"0.0.0.0", "::"} else self.host)  # noqa: S104 - compared, not bound
