"""What the pool carries at one moment, reduced to the sums that every candidate split shares.

Looking costs O(engines), whatever the number of resident requests.
"""

from dataclasses import dataclass

from narwhal.control.demand import Demand
from narwhal.control.state import Engine, Pool, Settings
from narwhal.fleet.model import Role


@dataclass(frozen=True, slots=True)
class Offered:
    """Demand that a split is scored against."""

    prefill: float
    """pe*: prefill seconds offered per second."""
    decode: float
    """Y: occupancy that enters decode in 5 s and is still there after them."""


@dataclass(frozen=True, slots=True)
class Load:
    """One look at the pool. Engines between two roles count for the one they go to."""

    t: float
    prefill: int
    """Live prefill engines, P."""
    decode: int
    """Live decode engines, D."""
    speed: float
    """cap(P): what the prefill engines do per second, in reference engines; less where decodes are resident."""
    waiting_s: float
    """W times P: prefill seconds that no engine has begun, router queue included."""
    age: float
    """Mean over prefill engines of the oldest unstarted prompt's age over its TTFT target."""
    ttft_s: float
    """TTFT target of the prompts that wait, in seconds."""
    occupancy: float
    """Sum over decode engines, with the streams that wait for a seat."""
    pace: float
    """The same sum in the term of the TPOT target alone."""
    empty_pace: float
    """Decode interval of an empty batch over the TPOT target."""
    survival: float
    """S: the share of occupancy that outlives 5 s."""
    offered: Offered

    def inputs(self) -> dict[str, float]:
        """The figures by name, for the record."""
        return {
            "prefill_offered": self.offered.prefill,
            "prefill_capacity": self.speed,
            "prefill_waiting_s": self.waiting_s,
            "prefill_age": self.age,
            "decode_occupancy": self.occupancy,
            "decode_entering": self.offered.decode,
            "decode_survival": self.survival,
        }


def look(pool: Pool, settings: Settings, demand: Demand, t: float) -> Load:
    """The load at `t`. Settles change points of demand first, once for each evaluation."""
    demand.settle(t)
    prefill, decode = by_role(pool)
    tpot_s = settings.slo.tpot_s
    age, ttft_s = _age(pool, settings, prefill, t)
    base = reference(pool)
    seats = len(pool.seats) * demand.mean_occupancy()
    return Load(
        t=t,
        prefill=len(prefill),
        decode=len(decode),
        speed=sum(speed(engine, base) for engine in prefill),
        waiting_s=max(pool.queue.cost_s + sum(_unstarted_s(engine) for engine in prefill), 0.0),
        age=age,
        ttft_s=ttft_s,
        occupancy=seats + sum(engine.occupancy(tpot_s) for engine in decode),
        pace=seats + sum(pace(engine, tpot_s) for engine in decode),
        empty_pace=min(decode[0].curves.d0_s / tpot_s, 1.0) if decode else 0.0,
        survival=demand.survival(t),
        offered=Offered(demand.prefill_load(t), demand.entering(t)),
    )


def role_of(engine: Engine) -> Role:
    """The role that counts for the split: the one it is moving to, else the one it holds."""
    return engine.moving or engine.role


def by_role(pool: Pool) -> tuple[list[Engine], list[Engine]]:
    """Live prefill and live decode engines, each by id."""
    live = [engine for _, engine in sorted(pool.engines.items()) if engine.live]
    return (
        [engine for engine in live if role_of(engine) == "prefill"],
        [engine for engine in live if role_of(engine) == "decode"],
    )


def able(engine: Engine) -> bool:
    """Whether a floor counts it: live, and neither suspected nor in question. One between two roles is able already."""
    return engine.live and not engine.suspected and not engine.questions


def able_in(pool: Pool, role: Role) -> int:
    """Engines of a role that may get new work, pending moves counted as done."""
    return sum(able(engine) and role_of(engine) == role for engine in pool.engines.values())


def reference(pool: Pool) -> Engine | None:
    """The engine whose curve prices arriving prompts: the first open prefill engine, else any."""
    return pool.prefill[0] if pool.prefill else next(iter(pool.decode or pool.engines.values()), None)


def speed(engine: Engine, base: Engine | None) -> float:
    """What an engine prefills per second, in engines like `base`: 1/slowdown by its resident decodes.

    slowdown = (ct + d1·n + d2·kv)/ct · chunk/(chunk − n), ct = b·chunk; n at or above the chunk leaves nothing.
    """
    curves = engine.curves
    chunk, n = curves.chunk_tokens, engine.charged_streams
    if n >= chunk:
        return 0.0
    alone = 1.0
    if base is not None and base is not engine:
        same = base.curves is curves
        alone = base.prefill_scale / engine.prefill_scale
        alone *= 1.0 if same else base.curves.prefill_s(chunk) / curves.prefill_s(chunk)
    if n == 0:
        return alone
    chunk_s = curves.b_s * chunk
    slowdown = (chunk_s + curves.d1_s * n + curves.d2_s * engine.charged_kv_tokens) / chunk_s * chunk / (chunk - n)
    return alone / slowdown


def pace(engine: Engine, tpot_s: float) -> float:
    """How much of the room under the TPOT target a decode engine's batch takes; 0 where there is no room at all."""
    curves = engine.curves
    room_s = tpot_s - curves.d0_s
    if room_s <= 0:
        return 0.0
    return (curves.d1_s * engine.charged_streams + curves.d2_s * engine.charged_kv_tokens) / room_s


def _unstarted_s(engine: Engine) -> float:
    """Prefill seconds of the prompts an engine was given and has not begun: all but the oldest."""
    if len(engine.prefills) < 2:
        return 0.0
    return engine.prefill_backlog_s - next(iter(engine.prefills.values()))[1]


def _age(pool: Pool, settings: Settings, prefill: list[Engine], t: float) -> tuple[float, float]:
    """Mean over prefill engines of the oldest unstarted prompt's age over its target, and the mean target."""
    queued = _oldest_queued(pool)
    ages: list[float] = []
    targets: list[float] = []
    for engine in prefill:
        oldest = _second(pool, engine) or queued
        if oldest is None:
            ages.append(0.0)
            continue
        arrived_t, ttft_s = oldest
        ages.append(max(t - arrived_t, 0.0) / ttft_s)
        targets.append(ttft_s)
    mean_age = sum(ages) / len(ages) if ages else 0.0
    return mean_age, sum(targets) / len(targets) if targets else settings.slo.ttft_for(1)


def _second(pool: Pool, engine: Engine) -> tuple[float, float] | None:
    """(arrived_t, TTFT target) of the oldest prompt that an engine has not begun."""
    if len(engine.prefills) < 2:
        return None
    numbers = iter(engine.prefills)
    next(numbers)
    request = pool.requests.get(next(numbers))
    return (request.arrived_t, request.ttft_s) if request else None


def _oldest_queued(pool: Pool) -> tuple[float, float] | None:
    """(arrived_t, TTFT target) of the oldest prompt in the router's queue."""
    request = pool.queue.oldest()
    return (request.arrived_t, request.ttft_s) if request else None
