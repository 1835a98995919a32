"""What is known: engines, requests, and sums over them that are kept up to date instead of being computed.

Only `lifecycle` changes these sums, through the methods here; placement, admission and the role controller read
them, so a decision costs O(engines) whatever the number of resident requests.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import Enum

from narwhal.control.curves import Curves
from narwhal.control.events import Role
from narwhal.fleet.model import Controller, Recovery, Serving, Slo


@dataclass(frozen=True, slots=True)
class Settings:
    """The parts of a fleet file that control reads."""

    slo: Slo
    serving: Serving
    controller: Controller
    recovery: Recovery
    kv_lease_s: float = 30.0


class Phase(Enum):
    """Where a request is."""

    QUEUED = "queued"
    PREFILL = "prefill"
    SEAT = "seat"
    """Leg 1 is done, leg 2 waits for a decode engine."""
    DECODE = "decode"
    WHOLE = "whole"


class Request:
    """A request between its arrival and its end."""

    __slots__ = (
        "arrived_t", "attempts", "cost_s", "decode_engine", "entered_t", "excluded", "first_token", "id", "kv_tokens",
        "max_tokens", "model", "occupancy", "phase", "prefill_engine", "prefilled_t", "prompt_tokens", "tenant",
        "ttft_s", "whole",
    )  # fmt: skip

    def __init__(self, id: int, tenant: str, model: str, prompt_tokens: int, max_tokens: int) -> None:
        self.id = id
        self.tenant = tenant
        self.model = model
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.whole = False
        self.phase = Phase.QUEUED
        self.arrived_t = 0.0
        self.ttft_s = 0.0
        """Its TTFT target."""
        self.cost_s = 0.0
        """Price of its prefill on the reference curve, in seconds."""
        self.prefill_engine = ""
        self.prefilled_t = 0.0
        self.decode_engine = ""
        self.entered_t = 0.0
        """When it was given to its decode engine."""
        self.kv_tokens = 0
        """KV it is charged with on its decode engine: prompt plus visible tokens."""
        self.occupancy = 0.0
        """Its share of that engine in the engine's binding term, when it entered."""
        self.first_token = False
        self.attempts = 0
        self.excluded: tuple[str, ...] = ()
        """Engines that failed it; it never goes back to one."""


class Engine:
    """An engine: its role and standing, and sums of what it is charged with."""

    __slots__ = (
        "admitted", "curves", "device", "draining", "ejected", "failures", "fingerprint", "generation", "healthy",
        "id", "kv_tokens", "measured", "moving", "observed_kv_tokens", "observed_running", "observed_waiting",
        "pin", "prefill_backlog_s", "prefill_tokens", "prefills", "role", "role_since_t", "streams", "suspected",
    )  # fmt: skip

    def __init__(self, id: str, role: Role, curves: Curves) -> None:
        self.id = id
        self.role: Role = role
        self.role_since_t = float("-inf")
        self.pin: Role | None = None
        self.curves = curves
        self.measured = False
        self.fingerprint = ""
        self.device = ""
        self.generation = ""
        self.admitted = False
        """Whether its present generation may have work."""
        self.ejected = False
        self.draining = False
        self.suspected = False
        self.failures = 0
        self.healthy = 0
        self.moving: Role | None = None
        """Role of a `MoveRole` that is not acknowledged yet."""
        self.prefills: OrderedDict[int, tuple[float, float]] = OrderedDict()
        """Outstanding leg 1s in order of sending: request -> (sent_t, cost_s). The oldest is the one in service."""
        self.prefill_backlog_s = 0.0
        """Sum of their costs."""
        self.prefill_tokens = 0
        """Sum of their prompt lengths."""
        self.streams = 0
        """Resident decode legs, those in transfer or waiting on the engine included."""
        self.kv_tokens = 0
        """Sum of their KV: prompt plus visible tokens."""
        self.observed_running = 0
        self.observed_waiting = 0
        self.observed_kv_tokens = 0

    @property
    def live(self) -> bool:
        """Whether it counts for the split: an admitted generation, neither ejected nor draining."""
        return self.admitted and not self.ejected and not self.draining

    @property
    def open(self) -> bool:
        """Whether it may get new work."""
        return self.live and not self.suspected

    @property
    def charged_streams(self) -> int:
        """Streams it is charged with: ours, or what its metrics say when that is more (foreign requests)."""
        return max(self.streams, self.observed_running + self.observed_waiting - len(self.prefills))

    @property
    def charged_kv_tokens(self) -> int:
        """KV tokens it is charged with: ours, or what its metrics say when that is more."""
        return max(self.kv_tokens, self.observed_kv_tokens - self.prefill_tokens)

    def occupancy(self, tpot_s: float) -> float:
        """How full it is as a decode engine (1: full), by its tightest limit."""
        return self.curves.occupancy(self.charged_streams, self.charged_kv_tokens, tpot_s)

    def backlog_s(self, t: float) -> float:
        """Predicted seconds until a prompt sent at `t` would begin, the prompt in service counted by what is left."""
        if not self.prefills:
            return 0.0
        sent_t, cost_s = next(iter(self.prefills.values()))
        served = min(max(t - sent_t, 0.0), cost_s)
        return max(self.prefill_backlog_s - served, 0.0)


@dataclass(slots=True)
class Pool:
    """All that belongs to one model and contract."""

    engines: dict[str, Engine] = field(default_factory=dict)
    requests: dict[int, Request] = field(default_factory=dict)
    queue: deque[int] = field(default_factory=deque)
    """Requests that wait for a prefill engine, oldest first; entries of ended requests are skipped."""
    queued: int = 0
    """How many of `queue` still wait."""
    queued_cost_s: float = 0.0
    """Sum of their prefill costs."""
    seats: deque[int] = field(default_factory=deque)
    """Requests whose leg 1 is done and whose leg 2 waits for a decode engine, oldest first."""
    epoch: int = 0
    """Rises with each role change."""
    hold: bool = False
    hold_reason: str = ""

    def split(self) -> tuple[int, int]:
        """Live prefill and decode engines, pending moves counted as done."""
        prefill = decode = 0
        for engine in self.engines.values():
            if engine.live:
                if (engine.moving or engine.role) == "prefill":
                    prefill += 1
                else:
                    decode += 1
        return prefill, decode
