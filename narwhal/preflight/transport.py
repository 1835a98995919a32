"""How a long prompt's KV travels over each pair, and over which transport: told from the rate that engines count."""

from collections.abc import Sequence
from dataclasses import dataclass

from narwhal.fleet import EngineSpec
from narwhal.fleet.model import Runtime
from narwhal.preflight.document import CheckResult, TransportResult
from narwhal.preflight.pairs import Pair, Verdict

DIRECT_BYTES_PER_S = 8e9
"""From here on KV goes from card to card: between what a socket does (some GB/s a connection, loopback included) and
what the slowest cards that reach each other do (PCIe 3.0 x16: 12 GB/s; on one H200 it was 229 GB/s)."""
SOCKET_BYTES_PER_S = 1.5e9
"""Below, KV of a card goes through sockets: UCX's own fallback between two processes of one H200 did 0.034 GB/s."""
LEAST_BYTES = 16 << 20
"""A shorter transfer is latency, and its rate says nothing."""


@dataclass(frozen=True, slots=True)
class LongHandoff:
    """A long prompt that one engine handed over to another."""

    producer: str
    consumer: str
    prompt_tokens: int
    first_token_s: float
    """From sending leg 2 to its first token."""
    bytes: int | None
    """What the consumer counted as transferred; None: it does not count."""
    transfer_s: float | None
    """How long it counted for that; None: it does not count."""

    @property
    def pair(self) -> Pair:
        """Producer and consumer."""
        return self.producer, self.consumer

    @property
    def bytes_per_s(self) -> float | None:
        """Rate of the transfer alone, without queues and steps; None where it was not counted."""
        return self.bytes / self.transfer_s if self.bytes and self.transfer_s else None


def expected(runtime: Runtime, producer: EngineSpec, consumer: EngineSpec) -> str:
    """What the launches of two engines are configured for: `cuda_ipc` between cards of one host, else nothing to say.

    `UCX_TLS` in `engines.env` may choose otherwise; whoever sets it knows.
    """
    if runtime.kind == "simulated" or not (producer.gpus and consumer.gpus) or producer.host != consumer.host:
        return ""
    return "cuda_ipc"


def judge_transport(one: LongHandoff, wanted: str) -> tuple[str, Verdict]:
    """The transport that a rate tells, and whether it is the one that was configured (`wanted`; empty: none was)."""
    rate = one.bytes_per_s
    if rate is None:
        return "", Verdict("SKIP", "the consumer does not count the time of transfers")
    seen = f"{one.bytes} bytes in {(one.transfer_s or 0) * 1e3:.3g} ms, {rate / 1e9:.3g} GB/s"
    if wanted != "cuda_ipc":
        return "", Verdict("ok", f"{seen}: shared memory and sockets are not told apart by their rate")
    if rate >= DIRECT_BYTES_PER_S:
        return "cuda_ipc", Verdict("ok", f"{seen}: cuda_ipc, as no socket is so quick")
    if (one.bytes or 0) < LEAST_BYTES:
        return "", Verdict("ok", f"{seen}: too little to tell the transport by")
    if rate >= SOCKET_BYTES_PER_S:
        said = f"{seen}: neither cards that reach each other nor sockets; perhaps through the host's memory"
        return "staged", Verdict("WARN", said, "nvidia-smi topo -p2p r tells whether the cards reach each other")
    said = f"{seen}: tcp, though cuda_ipc is configured"
    step = (
        "look for UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on and UCX_TLS in its environment; UCX_LOG_LEVEL=info names the lanes"
    )
    return "tcp", Verdict("WARN", said, step)


def transport_rows(
    judged: Sequence[tuple[LongHandoff, str, Verdict]],
) -> tuple[list[CheckResult], list[TransportResult]]:
    """The check `transport` of each pair, and its evidence."""
    checks = [
        CheckResult(
            name="transport",
            subject=" > ".join(one.pair),
            status=seen.status,
            reason=seen.reason,
            next_step=seen.next_step,
            seconds=one.first_token_s,
        )
        for one, _, seen in judged
    ]
    evidence = [
        TransportResult(
            producer=one.producer,
            consumer=one.consumer,
            prompt_tokens=one.prompt_tokens,
            first_token_s=one.first_token_s,
            moved_bytes=one.bytes,
            transfer_s=one.transfer_s,
            transport=transport or None,
        )
        for one, transport, _ in judged
    ]
    return checks, evidence
