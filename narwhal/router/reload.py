"""What a changed fleet file means for a router that runs: a comparison, field by field, that changes nothing.

Every field of the schema has an effect here (a test walks the schema), so a change is either in force at once, or
said to need a restart, or said to mean nothing to what runs. Engines are compared as they are expanded: by id, URL,
pin and shared card.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import msgspec
from pydantic import BaseModel

from narwhal.fleet.expanded import EngineSpec, Expanded, RouterSpec
from narwhal.fleet.finding import Path, dotted
from narwhal.fleet.model import Fleet


class Effect(Enum):
    """What becomes of a changed value."""

    LIVE = "in force at once"
    TLS = "in force at once where TLS stays on; switching it on or off needs the router"
    SET = "seen in the engines that the file comes to"
    JOINING = "for engines that join; those that run keep their roles (narwhal move)"
    ROUTER = "router"
    ENGINES = "engines"
    BOTH = "engines and router"
    UNREAD = "nothing that runs reads it"


Entry = tuple[str, Any]
"""A value, and its field in the schema."""
Values = Mapping[str, Entry]
"""Values by path."""
RESTARTS = (Effect.ROUTER, Effect.ENGINES, Effect.BOTH)
_FIELDS = {
    Effect.LIVE: """
        slo.ttft_s slo.tpot_s slo.ttft_by_prompt slo.attainment
        serving.admission serving.margin serving.prefill_in_flight serving.queue.max_requests serving.queue.max_wait_s
        serving.deadlines.prefill_s serving.deadlines.first_token_s serving.deadlines.gap_s serving.deadlines.request_s
        serving.max_retries serving.max_body_bytes serving.max_buffered_bytes serving.max_header_bytes
        serving.retry_budget.share serving.retry_budget.reserve
        serving.continuation.enabled serving.continuation.max_per_request serving.continuation.max_bytes
        serving.continuation.budget.share serving.continuation.budget.reserve
        serving.media_hosts serving.shutdown_s serving.drain_s
        controller.enabled controller.policy controller.advisory controller.monitor_interval_s
        controller.min_prefill controller.min_decode controller.thresholds.cooldown_s controller.thresholds.dwell_s
        controller.thresholds.flip_resident_guard controller.thresholds.shrink controller.thresholds.expand
        controller.reactive.step_s controller.reactive.window_s controller.reactive.evidence_span_s
        controller.reactive.evidence_max_span_s controller.reactive.evidence_min_arrivals
        controller.reactive.demand_rise_tolerance controller.reactive.movement_margin controller.reactive.act_at
        controller.reactive.confirmations
        controller.projection.step_s controller.projection.window_s controller.projection.short_window_s
        controller.projection.horizon_s controller.projection.occupancy_target controller.projection.expand_at
        controller.projection.shrink_at controller.projection.gain controller.projection.gain_calm
        controller.projection.reversal_s controller.projection.move_cost controller.projection.min_arrivals
        controller.projection.overflow
        recovery.degraded recovery.probe_interval_s recovery.probe_timeout_s recovery.eject_after
        recovery.readmit_after recovery.readmit_backoff_s recovery.strike_half_life_s recovery.restarts.most
        recovery.restarts.window_s recovery.drift.probation_at recovery.drift.eject_at recovery.drift.span_s
        recovery.link_retry_s recovery.canary.share recovery.canary.min_gap
        profiles.prior observability.log_level
        routers.admin.tokens[].name routers.admin.tokens[].scope
        routers.admin.tokens[].token.env routers.admin.tokens[].token.file
        routers.tenants[].name routers.tenants[].keys routers.tenants[].weight routers.tenants[].priority
        routers.tenants[].max_concurrency routers.tenants[].tokens_per_minute routers.tenants[].models
        routers.tenants[].disabled
    """,
    Effect.TLS: "routers.tls.cert routers.tls.key routers.admin.tls.cert routers.admin.tls.key",
    Effect.SET: """
        hosts[].name hosts[].ssh.address hosts[].fabric.address hosts[].gpus hosts[].engines
        engines.per_gpu engines.per_host engines.port_base
        engines.overrides{}.pin engines.overrides{}.port engines.overrides{}.url
    """,
    Effect.JOINING: "split.prefill split.decode",
    Effect.ROUTER: """
        metadata.name model.name
        routers.primary routers.standby routers.port routers.standby_port routers.bind routers.workers
        routers.admin.port routers.admin.bind
        routers.admin.socket routers.admin.group routers.admin.standby_port
        routers.front routers.vip.address routers.vip.interface
        lease.backend lease.endpoints lease.prefix lease.tls.ca lease.tls.cert lease.tls.key lease.auth.user
        lease.auth.password.env lease.auth.password.file lease.ttl_s lease.path
        recovery.state_path profiles.path
        observability.journal.path observability.journal.max_bytes observability.journal.keep
    """,
    Effect.ENGINES: """
        model.path
        engines.runtime.package engines.runtime.path engines.runtime.device
        engines.runtime.image engines.runtime.tool engines.tensor_parallel
        engines.max_model_len engines.gpu_memory_utilization engines.side_channel_port_base engines.attest_port_base
        engines.args{}
        engines.env{} engines.env{}.env engines.env{}.file
        engines.overrides{}.side_channel_port engines.overrides{}.attest_port engines.overrides{}.gpus
        engines.overrides{}.args{}
    """,
    Effect.BOTH: """
        engines.runtime.kind engines.runtime.profile engines.runtime.speed
        engines.max_num_seqs engines.max_num_batched_tokens engines.kv_lease_s
        engines.api_key.env engines.api_key.file engines.tls.ca engines.tls.server_name
    """,
    Effect.UNREAD: """
        apiVersion kind metadata.revision metadata.python metadata.labels{} model.digest
        hosts[].ssh.user hosts[].ssh.port hosts[].ssh.host_key hosts[].fabric.interface hosts[].gpu_memory_gib
        observability.prometheus.interval_s observability.prometheus.token_file observability.prometheus.ca_file
        observability.prometheus.alertmanager observability.prometheus.runbooks
        benchmark
    """,
}
EFFECTS = {name: effect for effect, names in _FIELDS.items() for name in names.split()}
"""Effect of every field. `[]`: of each item of a list of named things; `{}`: of each value of a mapping."""
WHOLE = frozenset({"benchmark"})
"""Sections that have an effect as a whole."""
HIDDEN = {
    "lease.auth.password.env",
    "lease.auth.password.file",
    "engines.args{}",
    "engines.env{}",
    "engines.env{}.env",
    "engines.env{}.file",
    "engines.api_key.env",
    "engines.api_key.file",
    "engines.overrides{}.args{}",
    "routers.admin.tokens[].token.env",
    "routers.admin.tokens[].token.file",
    "routers.tenants[].keys",
}
"""Fields that hold secrets, might, or say where one lies; their values are not shown."""


class Change(msgspec.Struct, frozen=True):
    """A value that differs from the one in force."""

    path: str
    """Field of the fleet file (`slo.ttft_s`), or an engine (`engine gpu-1/0`)."""
    old: Any
    """None: there was none. A value that may be a secret is `***`."""
    new: Any
    """None: there is none any more."""
    needs: str = ""
    """What has to be restarted for it: `router`, `engines`, `engines and router`; empty: nothing."""
    note: str = ""
    """What follows from it, in words, where that is not plain."""


class Error(msgspec.Struct, frozen=True):
    """Why nothing was changed."""

    code: str
    """Id of a rule (`NW012`), or a stable word."""
    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    field: str | None = None
    hint: str | None = None


class Reload(msgspec.Struct, frozen=True):
    """What reading the fleet file again changed, or would change."""

    check: bool
    """Whether it was only asked for: then nothing was changed."""
    file: str
    """The file that the router reads."""
    digest: str
    """Of what the file says now; empty: it cannot be read."""
    before: str
    """Of the file as it was read last."""
    applied: list[Change] = []
    restart: list[Change] = []
    """What the file says and only a restart can do."""
    no_effect: list[Change] = []
    """What changed in the file and means nothing to what runs."""
    errors: list[Error] = []
    """Where there is one, nothing was changed."""
    apiVersion: Literal["narwhal/v1"] = "narwhal/v1"  # noqa: N815
    kind: Literal["Reload"] = "Reload"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a new fleet file would change."""

    applied: list[Change] = field(default_factory=list)
    restart: list[Change] = field(default_factory=list)
    no_effect: list[Change] = field(default_factory=list)
    joins: list[EngineSpec] = field(default_factory=list)
    """Engines that are new, or have another URL than before."""
    leaves: list[str] = field(default_factory=list)
    """Engines that are gone from the file, or have another URL."""


@dataclass(frozen=True, slots=True)
class InForce:
    """What a router runs by: the file it was started with, and what reloads changed since."""

    fleet: Fleet
    """What is read from it is in force; values that need a restart are those of the start."""
    engines: Mapping[str, EngineSpec]
    router: RouterSpec
    digest: str
    """Of the file that was read last."""
    values: Values
    """All that is in force or was said to need the engines' restart."""

    @classmethod
    def start(cls, expanded: Expanded) -> "InForce":
        """What is in force in a router that starts."""
        return cls(
            expanded.fleet,
            {engine.id: engine for engine in expanded.engines},
            expanded.routers[0],
            expanded.fleet.digest(),
            _values(expanded.fleet),
        )

    def after(self, expanded: Expanded) -> "InForce":
        """What is in force once the plan for `expanded` is carried out."""
        old, new = self.fleet, expanded.fleet
        values = {
            path: value
            for path, before, after in _pairs(self.values, _values(new))
            if (value := before if _effect(before, after) in (Effect.ROUTER, Effect.BOTH) else after) is not None
        }
        restarted = ("metadata", "model", "engines", "routers", "lease")
        kept = {name: getattr(old, name) for name in restarted}
        kept["routers"] = old.routers.model_copy(update={"tenants": new.routers.tenants})
        fleet = new.model_copy(update=kept)
        engines = {engine.id: engine for engine in expanded.engines}
        return InForce(fleet, engines, self.router, new.digest(), values)


def compare(now: InForce, new: Expanded) -> Plan:
    """What has to be done, and what cannot be done while it runs, for `new` to be in force."""
    plan = Plan()
    for change, effect in _changes(now.values, _values(new.fleet)):
        if effect is Effect.LIVE:
            plan.applied.append(change)
        elif effect in RESTARTS:
            plan.restart.append(msgspec.structs.replace(change, needs=effect.value))
        elif effect is not Effect.SET:
            plan.no_effect.append(msgspec.structs.replace(change, note=effect.value))
    for part in ("bind", "admin_bind"):  # an address of its host may have changed under an unchanged routers.bind
        was, wanted = getattr(now.router, part), getattr(new.routers[0], part)
        if was != wanted:
            plan.restart.append(Change(f"router {part}", was, wanted, needs=Effect.ROUTER.value))
    _compare_engines(now.engines, {engine.id: engine for engine in new.engines}, plan)
    return plan


def _changes(old: Values, new: Values) -> Iterator[tuple[Change, Effect]]:
    for path, before, after in _pairs(old, new):
        if before != after:
            yield Change(path, _shown(before), _shown(after)), _effect(before, after)


def _pairs(old: Values, new: Values) -> Iterator[tuple[str, Entry | None, Entry | None]]:
    for path in [*new, *(path for path in old if path not in new)]:
        yield path, old.get(path), new.get(path)


def _effect(before: Entry | None, after: Entry | None) -> Effect:
    entry = after or before
    assert entry is not None
    effect = EFFECTS[entry[0]]
    if effect is Effect.TLS:
        return Effect.LIVE if before and after else Effect.ROUTER
    return effect


def _shown(entry: Entry | None) -> Any:
    return None if entry is None else "***" if entry[0] in HIDDEN else entry[1]


def _compare_engines(old: Mapping[str, EngineSpec], new: Mapping[str, EngineSpec], plan: Plan) -> None:
    for name, engine in new.items():
        path, before = f"engine {name}", old.get(name)
        if before is None:
            plan.applied.append(Change(path, None, engine.url, note=f"joins as {engine.role} once it is seen healthy"))
            plan.joins.append(engine)
            continue
        if before.url != engine.url:
            note = "finishes its requests at the old URL, then joins at the new one"
            plan.applied.append(Change(f"{path} url", before.url, engine.url, note=note))
            plan.leaves.append(name)
            plan.joins.append(engine)
        for part in ("pin", "shared_device"):
            was, now = getattr(before, part), getattr(engine, part)
            if was != now:
                plan.applied.append(Change(f"{path} {part}", was, now))
    for name in old:
        if name not in new:
            note = "gets no new requests, finishes those it has, then leaves"
            plan.applied.append(Change(f"engine {name}", old[name].url, None, note=note))
            plan.leaves.append(name)


def _values(fleet: Fleet) -> Values:
    return {dotted(path): (name, value) for name, path, value in fields(fleet)}


def fields(part: Any, name: str = "", path: Path = ()) -> Iterator[tuple[str, Path, Any]]:
    """Every value that a part of a fleet file holds: its field in the schema, its path, the value.

    A list whose items have effects of their own is told apart by their names, any other is one value; so is a section
    that has an effect as a whole.
    """
    if isinstance(part, BaseModel) and name not in WHOLE:
        for key, info in type(part).model_fields.items():
            key_ = info.alias or key
            yield from fields(getattr(part, key), f"{name}.{key_}" if name else key_, (*path, key_))
    elif isinstance(part, dict):
        for key, item in part.items():
            yield from fields(item, f"{name}{{}}", (*path, key))
    elif isinstance(part, list) and name not in EFFECTS:
        for item in part:
            yield from fields(item, f"{name}[]", (*path, item.name))
    elif isinstance(part, list):
        yield name, path, [item.model_dump(mode="json") if isinstance(item, BaseModel) else item for item in part]
    elif part is not None:
        yield name, path, part.model_dump(mode="json") if isinstance(part, BaseModel) else part
