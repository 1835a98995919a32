"""The `Attestation` document: who an engine process is, as seen on its host."""

from typing import Annotated, Literal

from pydantic import Field

from narwhal.documents import Document, Model
from narwhal.fleet.model import Digest, EngineId, Text

Count = Annotated[int, Field(ge=0)]


class AttestedProcess(Model):
    """One life of one process."""

    boot_id: Text
    """The kernel's id of this boot."""
    pid: Count
    """Process id of the HTTP server."""
    start_ticks: Count
    """Its start, in clock ticks since boot."""
    started_at_s: float
    """Its start, as Unix time in seconds."""
    executable: str | None
    """Program that it runs; null: it belongs to another user."""


class AttestedCache(Model):
    """The KV cache."""

    dtype: str | None
    """Type of its values; `auto`: the model's."""
    block_tokens: Count | None
    """Tokens of a block."""
    blocks: Count | None
    """Blocks of the cache."""
    bytes_per_token: Count | None
    """Bytes of one token's KV, over all layers and tensor-parallel ranks."""
    layout: str | None
    """Order of layers, blocks, heads and tokens in memory, as the engine names it."""


class Attestation(Document):
    """Who an engine is. What it does not tell is null, and `unknown` says why."""

    kind: Literal["Attestation"]
    """This is an attestation."""
    engine: EngineId
    """Id of the engine in the fleet file."""
    launch_digest: Digest
    """Digest of the launch record beside it."""
    process: AttestedProcess | None
    """The process that listens on its port."""
    generation: str | None
    """UUID of this life, from the names that it serves."""
    running_launch_digest: Digest | None
    """Digest of the launch record that it was started from, from the names that it serves."""
    version: str | None
    """Version that the server tells."""
    packages: dict[str, str | None]
    """Versions of the packages that it runs with; null: not installed."""
    model_path: str | None
    """Directory that it says it serves."""
    model_digest: Digest | None
    """Digest of the model in the launch record, compared when the engine was started."""
    max_model_len: Count | None
    """Longest prompt plus output, in tokens."""
    connector: str | None
    """Class that moves its KV."""
    engine_id: str | None
    """Id that its peers know it by; another one for each life."""
    compatibility_hash: str | None
    """Hash that two engines must share to exchange KV."""
    attention: str | None
    """Attention backend."""
    cache: AttestedCache
    """Its KV cache."""
    unknown: dict[str, str]
    """Why a field is null, by its name."""
