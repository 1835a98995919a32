"""A request from its arrival to its end: queue, leg 1, seat, leg 2. What becomes of it on the way is in `setbacks`."""

from collections.abc import Callable

from narwhal.control import admission, charges, load, losses, placement
from narwhal.control.commands import AnyCommand, Refuse, StartDecode, StartPrefill, StartWhole, Wait
from narwhal.control.corrections import correct_prefill, learn_intervals, observe_first_token, watch_batches
from narwhal.control.demand import Demand
from narwhal.control.events import (
    FirstToken,
    PrefillFinished,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    TokensObserved,
)
from narwhal.control.state import Engine, Phase, Pool, Request, Settings

NEVER = float("inf")
SEAT_MARGIN_S = 0.5
"""A handoff still waiting this long before half its lease is over is sent to an engine's own queue."""


class Lifecycle:
    """The transitions of requests. Each method takes an event or a time and returns commands in order."""

    def __init__(self, settings: Settings, pool: Pool, demand: Demand) -> None:
        self.settings = settings
        self.pool = pool
        self.demand = demand
        self.vindicated: Callable[[float, Request], list[AnyCommand]] = lambda t, request: []
        """Told of a request that is served after engines had failed it with a 5xx."""

    # Arrival and queue

    def arrive(self, event: RequestArrived) -> list[AnyCommand]:
        """Let a request in and place it, queue it, or refuse it."""
        pool, settings, t = self.pool, self.settings, event.t
        if event.request in pool.requests:
            return []
        share = pool.accounts[event.tenant].share(event.priority)
        tokens = event.prompt_tokens if event.prompt_tokens > 1 else 1
        arrived_t = event.started_t if 0 <= event.started_t <= t else t
        reference = load.reference(pool)
        cost_s = reference.prefill_s(tokens) if reference is not None else 0.0
        request = Request(
            event.request, share, event.model, tokens, event.max_tokens, event.whole, Phase.NEW, arrived_t,
            settings.slo.ttft_for(tokens), cost_s,
        )  # fmt: skip
        self.demand.arrived(t, cost_s)
        refusal = admission.refuse(pool, settings, self.demand, t, request)
        hold = bool(settings.tenants) and admission.may_hold(pool, settings, self.demand, t, request, refusal)
        if refusal is not None and not hold:
            return [refusal_of(request, refusal)]
        if event.resumable:
            request.resumable = True
        request.expected_tokens = share.account.begin(tokens, event.max_tokens)
        pool.requests[request.id] = request
        if hold:
            return [self._hold(request)]
        return self._enqueue(request, t) if pool.queue.count else self._place_new(request, t)

    def _hold(self, request: Request) -> Wait:
        """Decode is full, and will have room in time: let the request wait until then, in its tenant's turn."""
        request.phase = Phase.HELD
        charges.hold(self.pool, request)
        return Wait(request.id, "queue", admission.latest_t(self.pool, self.settings, request))

    def advance(self, t: float) -> list[AnyCommand]:
        """Something may be free: seats first, then engines for prompts, then room for what is held."""
        pool = self.pool
        if not (pool.seats.count or pool.queue.count or pool.held.count):
            return []
        commands = (self.fill_seats(t) if pool.seats.count else []) + (self.dispatch(t) if pool.queue.count else [])
        while (request := pool.held.head()) is not None:
            refusal = admission.refuse_held(pool, self.settings, self.demand, t, request)
            if refusal is not None and refusal.code == "decode":
                break
            charges.release_held(pool, request, served=refusal is None)
            if refusal is None:
                commands += self._enqueue(request, t)
            else:
                commands.append(self._end_queued(request, refusal_of(request, refusal)))
        return commands

    def _place_new(self, request: Request, t: float) -> list[AnyCommand]:
        """Nothing waits, so a request need not wait either: it passes the queue by if an engine has room."""
        command = self._place(request, t)
        if command is not None:
            return [command]
        request.phase = Phase.QUEUED
        charges.enqueue(self.pool, request)
        return [self._wait(request, t)]

    def _wait(self, request: Request, t: float) -> Wait:
        return Wait(request.id, "queue", t + self.settings.serving.queue.max_wait_s)

    def is_late(self, number: int, t: float, commands: list[AnyCommand]) -> bool:
        """Whether a request that just arrived will miss its TTFT target: it was refused for that, or waits too long."""
        request = self.pool.requests.get(number)
        if request is None:
            return any(isinstance(command, Refuse) and command.code == "queue" for command in commands)
        return request.phase is Phase.QUEUED and admission.price_s(self.pool, t, request) > request.ttft_s

    def _enqueue(self, request: Request, t: float, *, front: bool = False) -> list[AnyCommand]:
        if request.phase is Phase.SEAT:
            self._abandon(request)
            self.pool.seats.remove(request)
        request.phase = Phase.QUEUED
        charges.enqueue(self.pool, request, front=front)
        head = self.pool.queue.head()
        # one that waits behind others need not be tried: they were when something last became free
        commands = self.dispatch(t) if head is request or (head is not None and head.excluded) else []
        if request.phase is Phase.QUEUED and request.id in self.pool.requests:
            commands.append(self._wait(request, t))
        return commands

    def dispatch(self, t: float) -> list[AnyCommand]:
        """Place waiting prompts, in the queue's order, while an engine has room for the next."""
        queue = self.pool.queue
        commands: list[AnyCommand] = []
        set_aside: list[Request] = []  # retried requests whose remaining engines are busy do not block the others
        while (request := queue.head()) is not None:
            command = self._place(request, t)
            if command is not None:
                commands.append(command)
            elif request.excluded:
                set_aside.append(request)
                queue.remove(request)
            else:
                break
        for request in reversed(set_aside):
            queue.push(request, front=True)
        return commands

    def _place(self, request: Request, t: float) -> AnyCommand | None:
        pool, settings = self.pool, self.settings
        splits = True if pool.prefill and pool.decode else placement.splits(pool, settings)
        if splits is None:
            return None
        if request.excluded and losses.all_failed(pool, request, splits=splits):
            failed = Refuse(request.id, 502, "upstream", "every engine that could serve it failed")
            return self._end_queued(request, failed)
        late = admission.refuse_late(pool, settings, t, request) if request.phase is not Phase.NEW else None
        if late is not None:
            return self._end_queued(request, refusal_of(request, late))
        if request.whole or not splits:
            engine = placement.choose_whole(pool, settings, t, request)
            return self._start_whole(request, engine, t) if engine else None
        if settings.controller.projection.overflow:
            spare = placement.choose_overflow(pool, settings, t, request)
            if spare is not None:
                return self._start_whole(request, spare, t)
        engine = placement.choose_prefill(pool, settings, t, request)
        if engine is None:
            return None
        if engine.id in pool.lone:
            return self._start_whole(request, engine, t)
        charges.dequeue(pool, request, served=True)
        charges.charge_prefill(engine, request, t)
        request.phase = Phase.PREFILL
        return StartPrefill(request.id, engine.id, _until(t, settings.serving.deadlines.prefill_s))

    def _start_whole(self, request: Request, engine: Engine, t: float) -> StartWhole:
        if request.phase in (Phase.QUEUED, Phase.NEW):
            charges.dequeue(self.pool, request, served=True)
            charges.charge_prefill(engine, request, t)
        charges.charge_decode(engine, request, t)
        request.phase = Phase.WHOLE
        return StartWhole(request.id, engine.id, _until(t, self._whole_s()))

    def _whole_s(self) -> float:
        deadlines = self.settings.serving.deadlines
        return deadlines.prefill_s + deadlines.first_token_s if deadlines.prefill_s and deadlines.first_token_s else 0.0

    def _end_queued(self, request: Request, refusal: Refuse) -> Refuse:
        self._end(request)
        return refusal

    # Leg 1 to leg 2

    def prefill_finished(self, event: PrefillFinished) -> list[AnyCommand]:
        """Leg 1 answered: give leg 2 a seat, and its engine the next prompt."""
        request = self.pool.requests.get(event.request)
        if request is None or request.phase is not Phase.PREFILL:
            return []
        if event.prompt_tokens > 0:
            request.prompt_tokens = event.prompt_tokens
        charge = charges.release_prefill(self.pool, request)
        producer = self.pool.engines.get(request.prefill_engine)
        if charge is not None and producer is not None:
            correct_prefill(self.pool, producer, event.t, charge[0], request.prompt_tokens)
        request.prefilled_t = event.t
        request.phase = Phase.SEAT
        commands = self._seat(request, event.t)
        self._count_entry(request, event.t)
        if request.phase is Phase.SEAT:
            self.pool.seats.push(request)
            until = request.prefilled_t + max(self.settings.kv_lease_s / 2 - SEAT_MARGIN_S, 0.0)
            commands.append(Wait(request.id, "seat", until))
        return commands + self.dispatch(event.t) if self.pool.queue.count else commands

    def _seat(self, request: Request, t: float, *, full: bool = False) -> list[AnyCommand]:
        """Start leg 2 if there is a seat. After half the lease the handoff is worthless: prefill again."""
        if t - request.prefilled_t > self.settings.kv_lease_s / 2:
            return self._enqueue(request, t, front=True)
        engine = placement.choose_decode(self.pool, self.settings, request, full=full)
        if engine is not None:
            charges.charge_decode(engine, request, t)
            request.phase = Phase.DECODE
            until = _until(t, self.settings.serving.deadlines.first_token_s)
            return [StartDecode(request.id, engine.id, request.prefill_engine, until)]
        producer = self.pool.engines.get(request.prefill_engine)
        if producer is not None and producer.open and not placement.has_peer(self.pool, producer, request):
            self._abandon(request)
            return [self._start_whole(request, producer, t)]
        return []

    def fill_seats(self, t: float) -> list[AnyCommand]:
        """Start leg 2 of handoffs that wait, in their queue's order, while there are seats."""
        seats = self.pool.seats
        commands: list[AnyCommand] = []
        while (request := seats.head()) is not None:
            started = self._seat(request, t)
            if not started:
                break
            seats.take(request)
            commands += started
        return commands

    def _count_entry(self, request: Request, t: float) -> None:
        """Tell demand that a stream finished prefill, by its share of a decode engine in the binding term."""
        engine = self.pool.engines.get(request.decode_engine) or (self.pool.decode[0] if self.pool.decode else None)
        if engine is not None:
            request.occupancy = engine.share(request.prompt_tokens, self.settings.slo.tpot_s)
        self.demand.entered_decode(t, request.occupancy)
        request.entered_t = t

    # Tokens and the end

    def first_token(self, event: FirstToken) -> list[AnyCommand]:
        """The first token is out: the handoff's time is known, and a whole request's prefill is over."""
        request = self.pool.requests.get(event.request)
        if request is None or request.first_token:
            return []
        request.first_token = True
        commands = self.vindicated(event.t, request) if request.accused else []
        charge = charges.release_prefill(self.pool, request) if request.phase is Phase.WHOLE else None
        observe_first_token(self.pool, request, event.t, charge[0] if charge is not None else None)
        if charge is None:
            return commands
        self._count_entry(request, event.t)
        return commands + self.dispatch(event.t)

    def tokens(self, event: TokensObserved) -> list[AnyCommand]:
        """Charge the tokens that streams produced since the last such event."""
        watch_batches(self.pool, event.t)
        requests = self.pool.requests
        for number, tokens in zip(event.requests, event.tokens, strict=True):
            request = requests.get(number)
            if request is not None and tokens > 0:
                charges.add_tokens(self.pool, request, tokens, event.t)
        return []

    def finished(self, event: RequestFinished) -> list[AnyCommand]:
        """An answer is complete: what it used is known."""
        request = self.pool.requests.get(event.request)
        pool, serving = self.pool, self.settings.serving
        if pool.retries.spent or pool.continuations.spent:
            pool.retries.earn(serving.retry_budget)
            pool.continuations.earn(serving.continuation.budget)
        if request is not None:
            engine = pool.engines.get(request.decode_engine)
            if not request.first_token and request.phase is Phase.DECODE and engine is not None:
                charges.count_handoff(engine, request, None)  # it came in one piece
                request.first_token = True
            learn_intervals(self.pool, request, event.t, event.completion_tokens)
            charges.correct_tokens(request, event.completion_tokens)
            request.share.account.learn(event.completion_tokens, event.t - request.arrived_t)
            if request.accused:
                return self.vindicated(event.t, request) + self._over(event.request, event.t)
        return self._over(event.request, event.t)

    def cancelled(self, event: RequestCancelled) -> list[AnyCommand]:
        """The client left."""
        return self._over(event.request, event.t)

    def _over(self, number: int, t: float) -> list[AnyCommand]:
        request = self.pool.requests.get(number)
        if request is None:
            return []
        self._count_exit(request, t)
        self._end(request)
        return self.advance(t)

    def _count_exit(self, request: Request, t: float) -> None:
        engine = self.pool.engines.get(request.decode_engine)
        if engine is not None and request.phase in (Phase.DECODE, Phase.WHOLE):
            share = engine.share(request.kv_tokens, self.settings.slo.tpot_s)
            self.demand.left_decode(t, share, request.entered_t, request.occupancy)

    def _abandon(self, request: Request) -> None:
        """Nobody will read a request's handoff any more: its producer keeps the blocks until its lease ends."""
        producer = self.pool.engines.get(request.prefill_engine)
        if producer is not None and request.reads_handoff:
            charges.abandon(producer, request, self.settings.kv_lease_s)

    def _end(self, request: Request) -> None:
        self._abandon(request)
        if request.phase is Phase.QUEUED:
            charges.dequeue(self.pool, request, served=False)
        elif request.phase is Phase.HELD:
            charges.release_held(self.pool, request, served=False)
        elif request.phase is Phase.SEAT:
            self.pool.seats.remove(request)
        charges.settle(request)
        if request.phase is not Phase.DECODE:  # its leg 1 is over
            charges.drop_prefill(self.pool, request)
        charges.release_decode(self.pool, request)
        del self.pool.requests[request.id]


def _until(t: float, seconds: float) -> float:
    return t + seconds if seconds > 0 else NEVER


def refusal_of(request: Request, refusal: admission.Refusal) -> Refuse:
    """The command that refuses a request; its tenant is told when a larger fleet would have let it in."""
    if refusal.code in admission.NO_CAPACITY:
        request.share.turned_away(request.arrived_t)
    return Refuse(request.id, refusal.status, refusal.code, refusal.message, refusal.retry_after_s)
