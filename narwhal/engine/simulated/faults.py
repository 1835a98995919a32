"""Faults on demand: what may go wrong in an engine, for as long or as often as asked.

| kind | what happens | further keys |
| --- | --- | --- |
| crash | the process is gone at once (exit code 137), at its next generated token | |
| hang | it goes on living and stops answering | scope: all, prefill, decode |
| slow | every step takes `factor` times as long | factor |
| refuse | generation requests get 503, as when the queue is full | |
| status | generation requests get the status `code` | code, leg: 1, 2 or absent for both |
| cut_stream | the connection of a stream breaks after `after_tokens` tokens | after_tokens |
| corrupt_kv | KV that it sends (producer) or receives (consumer) is corrupt | side: producer, consumer; engine |
| drop_peer | connections with the peer `engine` break, and new ones fail; absent for all | engine |

With side consumer, `engine` of corrupt_kv is the producer whose KV is spoiled; absent for all.
`count` limits how often a fault strikes, `duration_s` how long it lasts; without them it lasts until it is removed.
"""

from typing import Literal

import msgspec

Kind = Literal["crash", "hang", "slow", "refuse", "status", "cut_stream", "corrupt_kv", "drop_peer"]


class Fault(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One fault, as JSON: `{"kind": "slow", "factor": 3, "duration_s": 10}`."""

    kind: Kind
    count: int | None = None
    duration_s: float | None = None
    scope: Literal["all", "prefill", "decode"] = "all"
    factor: float = 2.0
    code: int = 500
    leg: Literal[1, 2] | None = None
    after_tokens: int = 1
    side: Literal["producer", "consumer"] = "producer"
    engine: str | None = None


class Faults:
    """The faults of an engine. Times are of the caller's monotonic clock."""

    def __init__(self) -> None:
        self._faults: list[tuple[Fault, float | None]] = []

    def add(self, fault: Fault, now: float) -> None:
        """Let a fault begin."""
        self._faults.append((fault, None if fault.duration_s is None else now + fault.duration_s))

    def clear(self) -> None:
        """End all faults."""
        self._faults.clear()

    def active(self, now: float, kind: Kind | None = None) -> list[Fault]:
        """The faults that hold at `now`, of one kind or all; those that are over are forgotten."""
        if not self._faults:
            return []
        self._faults = [
            (fault, until_t)
            for fault, until_t in self._faults
            if (until_t is None or now < until_t) and (fault.count is None or fault.count > 0)
        ]
        return [fault for fault, _ in self._faults if kind is None or fault.kind == kind]

    def strike(self, now: float, kind: Kind, **match: object) -> Fault | None:
        """The first active fault of that kind whose keys are as in `match` or unset, counted as one more time."""
        for fault in self.active(now, kind):
            if all(getattr(fault, key) in (None, value) for key, value in match.items()):
                if fault.count is not None:
                    fault.count -= 1
                return fault
        return None

    def hung(self, now: float, scope: str) -> bool:
        """Whether work of `scope` stands still: prefill, decode, or all."""
        return any(fault.scope in ("all", scope) for fault in self.active(now, "hang"))

    def slowness(self, now: float) -> float:
        """Factor on the time of a step."""
        factor = 1.0
        for fault in self.active(now, "slow"):
            factor *= fault.factor
        return factor
