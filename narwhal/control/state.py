"""What is known: engines, requests, and sums over them that are kept up to date instead of being computed.

Only `lifecycle` changes these sums, through the methods here; placement, admission and the role controller read
them, so a decision costs O(engines) whatever the number of resident requests.
"""

from collections import OrderedDict
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

import msgspec
from pydantic import TypeAdapter

from narwhal.control import cohorts
from narwhal.control.budget import Budget
from narwhal.control.curves import Curves
from narwhal.control.events import Role
from narwhal.control.learning import Learned
from narwhal.control.link import Link
from narwhal.control.meter import Meter
from narwhal.control.queue import FairQueue
from narwhal.control.tenants import Accounts, Share
from narwhal.control.vitals import Drain, Vitals
from narwhal.fleet.model import Controller, Fleet, Recovery, Serving, Slo, TenantLimits


@dataclass(slots=True)
class Settings:
    """The parts of a fleet file that control reads.

    Each `Control` has its own, and a reload writes new values into it: who holds it reads what is in force, and who
    keeps a part or a figure of it takes up the change in `Control`'s handler of `SettingsChanged`.
    """

    slo: Slo
    serving: Serving
    controller: Controller
    recovery: Recovery
    kv_lease_s: float = 30.0
    max_model_len: int = 16384
    """Longest prompt plus answer, in tokens."""
    tenants: tuple[TenantLimits, ...] = ()
    """None: every request is of tenant `default`, without limits."""

    @classmethod
    def of(cls, fleet: Fleet) -> "Settings":
        """Those of a fleet file."""
        names = TenantLimits.model_fields
        tenants = tuple(TenantLimits.model_validate(t.model_dump(include=set(names))) for t in fleet.routers.tenants)
        serving, controller = fleet.serving, fleet.controller
        return cls(
            fleet.slo,
            serving,
            controller,
            fleet.recovery,
            fleet.engines.kv_lease_s,
            fleet.engines.max_model_len,
            tenants,
        )

    def copy(self) -> "Settings":
        """The same values, to be changed apart."""
        return replace(self)

    def take(self, other: "Settings") -> None:
        """Have the values of `other` from now on."""
        for part in fields(self):
            setattr(self, part.name, getattr(other, part.name))

    def document(self) -> dict[str, Any]:
        """As plain data: what stands in a file of events."""
        return {
            name: adapter.dump_python(getattr(self, name), mode="json") for name, adapter in self._adapters().items()
        }

    @classmethod
    def read(cls, document: dict[str, Any]) -> "Settings":
        """The inverse of `document`. Raises `ValueError` for what is none, `KeyError` for a part that is missing.

        `tenants` and `max_model_len` may be missing: files of events of earlier versions have none.
        """
        document = {"tenants": (), "max_model_len": 16384, **document}
        return cls(**{name: adapter.validate_python(document[name]) for name, adapter in cls._adapters().items()})

    @classmethod
    def _adapters(cls) -> dict[str, TypeAdapter[Any]]:
        return {part.name: TypeAdapter(part.type) for part in fields(cls)}  # type: ignore[arg-type]


class Phase(Enum):
    """Where a request is."""

    NEW = "new"
    """Let in just now, at a price that need not be asked again; placed or queued before anything else happens."""
    HELD = "held"
    """Let in once decode has room."""
    QUEUED = "queued"
    PREFILL = "prefill"
    SEAT = "seat"
    """Leg 1 is done, leg 2 waits for a decode engine."""
    DECODE = "decode"
    WHOLE = "whole"
    PAUSED = "paused"
    """It failed and is tried again after a pause."""
    RESUMING = "resuming"
    """The engine of its stream is lost; where its text stands is being found out."""


class Request(msgspec.Struct, array_like=True, eq=False, gc=False):
    """A request between its arrival and its end.

    A struct, so that thousands are copied and written at once (`snapshot`); nothing that it holds leads back to it, so
    the garbage collector need not look at it.
    """

    id: int
    share: Share
    """Of its tenant, in its priority class."""
    model: str
    prompt_tokens: int
    max_tokens: int
    whole: bool = False
    phase: Phase = Phase.NEW
    arrived_t: float = 0.0
    ttft_s: float = 0.0
    """Its TTFT target."""
    cost_s: float = 0.0
    """Price of its prefill on the reference curve, in seconds."""
    price_s: float = 0.0
    """Seconds to its first token as admission saw them, slack included; 0: it was not asked."""
    prefill_engine: str = ""
    prefilled_t: float = 0.0
    decode_engine: str = ""
    entered_t: float = 0.0
    """When it was given to its decode engine."""
    kv_tokens: int = 0
    """KV it is charged with on its decode engine: prompt plus visible tokens."""
    occupancy: float = 0.0
    """Its share of that engine in the engine's binding term, when it entered."""
    first_token: bool = False
    expected_tokens: int = 0
    """What its tenant's bucket gave for it when it was let in."""
    produced: int = 0
    """Completion tokens so far, over all attempts."""
    attempts: int = 0
    """Retries so far."""
    status_failures: int = 0
    """Engines that answered it with a 5xx; the second blames the request."""
    metered: tuple[float, float, float, int] = (0.0, 0.0, 0.0, 0)
    """Where its intervals began: time, the integrals of its engine's `Meter`, and tokens that it had then."""
    excluded: tuple[str, ...] = ()
    """Engines that failed it; it never goes back to one."""
    avoided: str = ""
    """Producer of a handoff that failed on its consumer: perhaps to blame, so others are tried first."""
    accused: tuple[tuple[str, str], ...] = ()
    """Producer (empty: none) and engine of each leg that answered it with a 5xx; whose fault it is, is open yet."""

    resumable: bool = False
    """Whether its stream can go on on another engine."""
    resumed: int = 0
    """How often it did."""
    delivered: int = 0
    """Tokens of its prompt that its client has as part of the answer: it goes on behind them."""
    asked: str = ""
    """The engine that was asked where its text stands."""

    @property
    def serving(self) -> str:
        """The engine that a leg of it runs on now; empty when none runs."""
        if self.phase is Phase.PREFILL:
            return self.prefill_engine
        return self.decode_engine if self.phase in (Phase.DECODE, Phase.WHOLE) else ""

    @property
    def reads_handoff(self) -> bool:
        """Whether KV of its leg 1 waits to be read, or may still be."""
        return self.phase is Phase.SEAT or (self.phase is Phase.DECODE and not self.first_token)


class Engine:
    """An engine: its role and standing, and sums of what it is charged with."""

    __slots__ = (
        "abandoned_times", "admitted", "curves", "device", "drain", "draining", "ejected",
        "file_pin", "fingerprint", "foreign_kv_tokens", "foreign_streams", "generation", "heard_t", "id",
        "kv_tokens", "last_prefill_t", "leaves_t", "links", "measured", "meter", "moving", "pin", "prefill_backlog_s",
        "prefill_scale", "prefill_tokens", "prefills", "probation", "questions", "role", "role_since_t", "streams",
        "suspected", "told_id", "vitals",
    )  # fmt: skip

    def __init__(self, id: str, role: Role, curves: Curves) -> None:
        self.id = id
        self.role: Role = role
        self.role_since_t = float("-inf")
        self.pin: Role | None = None
        """The role that it is bound to: the fleet file's word, or the operator's since then."""
        self.file_pin: Role | None = None
        """What the fleet file says."""
        self.curves = curves
        self.measured = False
        self.meter: Meter | None = None
        """What it shows of its speed while it has no profile."""
        self.fingerprint = ""
        """Name of its cohort (`cohorts`): legs pair only inside one."""
        self.device = ""
        self.generation = ""
        self.admitted = False
        """Whether its present generation may have work."""
        self.ejected = False
        self.draining = False
        """Whether the operator has it drained: it gets nothing new."""
        self.drain = Drain()
        self.abandoned_times: list[float] = []
        """When handoffs of it were made that nobody will read any more, in order; their blocks are kept for a lease."""
        self.leaves_t: float | None = None
        """When it is gone at the latest, after it was taken out of the fleet file; None: it stays."""
        self.suspected = False
        """Whether it may be down, or another process than before; until a look says otherwise nothing new is sent."""
        self.told_id = ""
        """The id that leg 1's answers name in its present generation; empty: none yet."""
        self.questions = 0
        """Open cases that hold new work back from it while probes tell who is to blame (`suspicion`)."""
        self.probation = False
        """Whether it is slow, or failed lately: placed after all others."""
        self.vitals = Vitals()
        self.heard_t = float("-inf")
        """When tokens of its streams came last."""
        self.links: dict[str, Link] = {}
        """Handoffs that it consumed, by producer."""
        self.moving: Role | None = None
        """Role of a `MoveRole` that is not acknowledged yet."""
        self.prefills: OrderedDict[int, tuple[float, float, int]] = OrderedDict()
        """Outstanding prompts in order of sending: request -> (sent_t, cost_s, prompt_tokens). The oldest is the one
        in service."""
        self.prefill_backlog_s = 0.0
        """Sum of their costs."""
        self.prefill_tokens = 0
        """Sum of their prompt lengths."""
        self.streams = 0
        """Resident decode legs, those in transfer or waiting on the engine included."""
        self.kv_tokens = 0
        """Sum of their KV: prompt plus visible tokens."""
        self.prefill_scale = 1.0
        """Live correction of the prefill curve: served over predicted, within 0.5 to 2."""
        self.last_prefill_t = float("-inf")
        """When the last prompt left it."""
        self.foreign_streams = 0
        """Requests its metrics showed beyond ours at the last look: a dead router's, another router's."""
        self.foreign_kv_tokens = 0
        """KV its metrics showed beyond ours at the last look, pinned handoffs included."""

    @property
    def live(self) -> bool:
        """Whether it counts for the split: an admitted generation, neither ejected, draining nor leaving."""
        return self.admitted and not self.ejected and not self.draining and self.leaves_t is None

    @property
    def open(self) -> bool:
        """Whether it may get new work: live, not suspected, not in question, and not between two roles."""
        return self.live and not self.suspected and not self.questions and self.moving is None

    @property
    def knows_prefill(self) -> bool:
        """Whether its prefill curve is to be trusted: measured, or learned from enough prompts."""
        return self.measured or (self.meter is not None and self.meter.learned.prefill.trusted)

    @property
    def knows_decode(self) -> bool:
        """Whether its decode curve is to be trusted: measured, or learned from enough streams."""
        return self.measured or (self.meter is not None and self.meter.learned.decode.trusted)

    def prefill_s(self, prompt_tokens: int) -> float:
        """Seconds it takes to prefill a prompt alone, live correction included."""
        return self.curves.prefill_s(prompt_tokens) * self.prefill_scale

    @property
    def charged_streams(self) -> int:
        """Streams it is charged with: ours and foreign ones."""
        return self.streams + self.foreign_streams

    @property
    def charged_kv_tokens(self) -> int:
        """KV tokens it is charged with: ours and foreign ones."""
        return self.kv_tokens + self.foreign_kv_tokens

    def observe(self, requests: int, kv_tokens: int) -> None:
        """Take what its metrics say (requests running and waiting, KV in use); what exceeds ours is foreign.

        Charging ours plus the excess at the moment of the look is max(own, observed) that stays right between looks.
        """
        self.foreign_streams = max(requests - self.streams - len(self.prefills), 0)
        self.foreign_kv_tokens = max(kv_tokens - self.kv_tokens - self.prefill_tokens, 0)

    def occupancy(self, tpot_s: float) -> float:
        """How full it is as a decode engine (1: full), by its tightest limit."""
        return self.curves.occupancy(
            self.streams + self.foreign_streams, self.kv_tokens + self.foreign_kv_tokens, tpot_s
        )

    def share(self, kv_tokens: int, tpot_s: float) -> float:
        """What one stream with `kv_tokens` of KV takes of this engine, in the term that binds it now."""
        return self.curves.share(
            self.streams + self.foreign_streams, self.kv_tokens + self.foreign_kv_tokens, kv_tokens, tpot_s
        )

    def backlog_s(self, t: float) -> float:
        """Predicted seconds until a prompt sent at `t` would begin, the prompt in service counted by what is left.

        It is in service since the one before it left, if it was sent before that.
        """
        if not self.prefills:
            return 0.0
        sent_t, cost_s, _ = next(iter(self.prefills.values()))
        served = t - (sent_t if sent_t > self.last_prefill_t else self.last_prefill_t)
        served = cost_s if served > cost_s else served if served > 0.0 else 0.0
        left_s = self.prefill_backlog_s - served
        return left_s if left_s > 0.0 else 0.0


@dataclass(slots=True)
class Pool:
    """All that belongs to one model and contract."""

    engines: dict[str, Engine] = field(default_factory=dict)
    requests: dict[int, Request] = field(default_factory=dict)
    accounts: Accounts = field(default_factory=Accounts)
    """The tenants."""
    held: FairQueue = field(default_factory=FairQueue)
    """Requests that decode has no room for yet; they are no demand for prefill."""
    queue: FairQueue = field(default_factory=FairQueue)
    """Requests that wait for a prefill engine."""
    seats: FairQueue = field(default_factory=FairQueue)
    """Requests whose leg 1 is done and whose leg 2 waits for a decode engine."""
    epoch: int = 0
    """Rises with each role change."""
    retries: Budget = field(default_factory=Budget)
    """For requests that an engine failed."""
    continuations: Budget = field(default_factory=Budget)
    """For streams that an engine failed."""
    hold: bool = False
    hold_reason: str = ""
    frozen: bool = False
    """Whether the router's lease is unproven: what the role map holds must not change then."""
    prefill: list[Engine] = field(default_factory=list)
    """Open prefill engines by id, as of the last `refresh`."""
    decode: list[Engine] = field(default_factory=list)
    """Open decode engines by id."""
    producers: list[Engine] = field(default_factory=list)
    """Engines that prompts are sent to: those of prefill, and those of decode that serve both legs."""
    lone: tuple[str, ...] = ()
    """Open engines that serve both legs, since nobody may read from them or they may read from nobody."""
    learned: dict[tuple[Curves, str, bool], Learned] = field(default_factory=dict)
    """What was learned of engines without a profile, by kind: prior, contract, whether they share a card."""
    trusted: bool = False
    """Whether the curves that admission goes by are to be trusted, as of the last `refresh`."""
    severed: dict[str, list[str]] = field(default_factory=dict)
    """Pairs that carry no handoffs now: producer -> consumers."""
    doubtful: dict[str, list[str]] = field(default_factory=dict)
    """Pairs that failed lately: others are preferred."""
    stranded: tuple[str, ...] = ()
    """Open prefill engines that no open decode engine may read from, since every pair is out."""
    shunned: tuple[str, ...] = ()
    """Open engines that are chosen last: on probation, or stranded."""
    handoff_s: float = 0.0
    """Measured seconds from sending leg 2 to its first token, a moving mean."""
    handoff_weight: float = 0.5
    """Weight of the next handoff in it: the first count for more."""
    slack_s: float = 0.0
    """Seconds that admission keeps in hand: nine of ten first tokens come no later than their price with it."""

    def refresh(self) -> None:
        """Note which engines are open, and what is known of them; after every change of a role or a standing."""
        engines = [engine for _, engine in sorted(self.engines.items()) if engine.open]
        self.prefill = [engine for engine in engines if engine.role == "prefill"]
        self.decode = [engine for engine in engines if engine.role == "decode"]
        self.trusted = all(engine.knows_prefill for engine in self.prefill or self.decode) and (
            not self.prefill or all(engine.knows_decode for engine in self.decode)
        )
        self.stranded = cohorts.stranded(self.prefill, self.decode, self.severed) if self.severed else ()
        self.lone = cohorts.lone(self.prefill, self.decode, self.stranded)
        self.producers = self.prefill + [engine for engine in self.decode if engine.id in self.lone]
        self.shunned = self.stranded + tuple([engine.id for engine in engines if engine.probation])

    def measure(self, engine: Engine, curves: Curves, *, measured: bool) -> None:
        """Have an engine be as fast as a profile says, or as was learned of its kind from a prior."""
        engine.curves, engine.measured, engine.meter = curves, measured, None
        if not measured:
            kind = (curves, engine.fingerprint, bool(engine.device))
            learned = self.learned.setdefault(kind, Learned(curves))
            engine.meter, engine.curves = Meter(learned), learned.curves

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
