"""What becomes of a request that an engine fails: it is sent elsewhere, its stream goes on elsewhere, or it ends."""

from narwhal.control import admission, charges, load, losses, placement
from narwhal.control.commands import Abort, AnyCommand, Refuse, Resume, Wait
from narwhal.control.events import DeadlinePassed, FailureCause, LegFailed, ResumeFailed, ResumeReady
from narwhal.control.failures import FAILURES, NO_RESUME
from narwhal.control.lifecycle import Lifecycle, refusal_of
from narwhal.control.state import Engine, Phase, Request

PAUSE_S = 0.05
"""Longest pause before a first retry, in seconds; twice that before the next, and so on."""
RESUME_S = 3.0
"""How long an engine may take to tell where the text of a stream stands, in seconds."""
_GOLDEN = 0.6180339887498949
"""Multiples of it, without their whole part, lie evenly between 0 and 1."""


class Setbacks(Lifecycle):
    """The transitions of requests, those after failures included."""

    def leg_failed(self, event: LegFailed) -> list[AnyCommand]:
        """Send the request, or the rest of its stream, elsewhere, else end it."""
        request = self.pool.requests.get(event.request)
        if request is None or event.engine != request.serving:
            return []
        if event.cause == "client":  # the engine's own answer goes to the client; nobody is to blame
            return self._over(request.id, event.t)
        if event.cause == "status" or event.status >= 500:
            request.status_failures += event.cause != "overload"
        return self._failed(request, event.t, event.engine, event.cause, visible=event.visible)

    def send_on(self, requests: list[Request], engine: str, t: float, cause: FailureCause) -> list[AnyCommand]:
        """Serve requests elsewhere that waited for an engine which fails, and streams that it had begun."""
        commands: list[AnyCommand] = []
        for request in requests:
            if request.phase is Phase.SEAT:
                commands += self._enqueue(request, t, front=True)
            elif request.id not in self.pool.requests:
                continue
            elif not request.first_token or engine not in self.pool.engines or self._may_resume(request):
                commands += self._failed(request, t, engine, cause, visible=False)
        return commands

    def clear(self, t: float, engine: str) -> list[AnyCommand]:
        """An engine that is drained has had its time: have what it still has served elsewhere, or end it.

        Nothing failed, so neither retries nor engines are used up by it.
        """
        commands: list[AnyCommand] = []
        for request in losses.left_on(self.pool, self.settings, engine, t):
            if request.id not in self.pool.requests:
                continue
            if request.first_token:
                commands += self._resume(request, t, FAILURES["drained"])
                continue
            if request.phase is not Phase.SEAT:
                self._abandon(request)
                charges.drop_prefill(self.pool, request)
                charges.release_decode(self.pool, request)
            commands += self._enqueue(request, t, front=True)
        return commands + self.fill_seats(t) if commands else []

    def _failed(
        self, request: Request, t: float, engine: str, cause: FailureCause, *, visible: bool
    ) -> list[AnyCommand]:
        exclude(request, engine)
        if visible or request.first_token:
            return self._resume(request, t, FAILURES[cause])
        return self._retry(request, t, engine, cause)

    def _give_up(self, request: Request, t: float, what: str, *, code: str = "upstream") -> list[AnyCommand]:
        self._end(request)
        return [Abort(request.id, 504 if code == "timeout" else 502, code, what), *self.advance(t)]

    # Before the first token

    def _retry(self, request: Request, t: float, engine: str, cause: FailureCause) -> list[AnyCommand]:
        serving = self.settings.serving
        if request.attempts >= serving.max_retries or request.status_failures >= 2:
            return self._give_up(request, t, FAILURES[cause])
        if not self.pool.retries.spend(serving.retry_budget):
            return self._give_up(request, t, FAILURES[cause])
        request.attempts += 1
        self._abandon(request)
        if request.decode_engine == engine:
            request.avoided = request.prefill_engine
        charges.drop_prefill(self.pool, request)
        charges.release_decode(self.pool, request)
        first = request.attempts == 1 and cause != "overload"  # the queue paces what one lost engine leaves behind
        if first or losses.all_failed(self.pool, request, splits=bool(placement.splits(self.pool, self.settings))):
            return self._enqueue(request, t, front=True) + self.fill_seats(t)
        request.phase = Phase.PAUSED
        return [Wait(request.id, "retry", t + pause_s(request)), *self.advance(t)]

    # After it

    def _may_resume(self, request: Request) -> bool:
        rules = self.settings.serving.continuation
        return (
            request.resumable
            and rules.enabled
            and request.resumed < rules.max_per_request
            and request.status_failures < 2
            and self.pool.continuations.left(rules.budget) >= 1.0
            and self._asked(request) is not None
        )

    def _asked(self, request: Request) -> Engine | None:
        """An engine that may tell the text of a stream's ids: it costs it next to nothing."""
        engines = self.pool.prefill + self.pool.decode
        return next((engine for engine in engines if engine.id not in request.excluded), None)

    def _resume(self, request: Request, t: float, what: str, *, code: str = "upstream") -> list[AnyCommand]:
        """Let a stream go on elsewhere; its engine is lost."""
        self._count_exit(request, t)
        if not self._may_resume(request):
            return self._give_up(request, t, what, code=code)
        self.pool.continuations.spend(self.settings.serving.continuation.budget)
        request.resumed += 1
        charges.drop_prefill(self.pool, request)
        charges.release_decode(self.pool, request)
        request.phase = Phase.RESUMING
        return [*self._ask(request, t), *self.advance(t)]

    def _ask(self, request: Request, t: float) -> list[AnyCommand]:
        engine = self._asked(request)
        if engine is None:
            return self._give_up(request, t, NO_RESUME.format("no engine is left"))
        request.asked = engine.id
        return [Resume(request.id, engine.id, t + RESUME_S)]

    def resume_ready(self, event: ResumeReady) -> list[AnyCommand]:
        """It is known what to ask for: a longer prompt, and fewer tokens."""
        request = self.pool.requests.get(event.request)
        if request is None or request.phase is not Phase.RESUMING:
            return []
        own = request.prompt_tokens - request.delivered
        request.delivered = max(event.prompt_tokens - own, 0)
        request.prompt_tokens, request.max_tokens = event.prompt_tokens, event.max_tokens
        reference = load.reference(self.pool)
        request.cost_s = reference.prefill_s(request.prompt_tokens) if reference is not None else request.cost_s
        request.first_token = False
        return self._enqueue(request, event.t, front=True) + self.fill_seats(event.t)

    def resume_failed(self, event: ResumeFailed) -> list[AnyCommand]:
        """The stream ends, unless it was the engine that was asked which failed."""
        request = self.pool.requests.get(event.request)
        if request is None or request.phase is not Phase.RESUMING:
            return []
        if not event.engine:
            return self._give_up(request, event.t, NO_RESUME.format(event.reason))
        exclude(request, event.engine)
        return self._ask(request, event.t)

    # Deadlines

    def deadline_passed(self, event: DeadlinePassed) -> list[AnyCommand]:
        """Something did not come in time."""
        request = self.pool.requests.get(event.request)
        if request is None:
            return []
        t, what, phase = event.t, event.what, request.phase
        if what == "prefill" and phase is Phase.PREFILL:
            return self._failed(request, t, request.prefill_engine, "timeout", visible=False)
        if what == "first_token" and phase in (Phase.DECODE, Phase.WHOLE) and not request.first_token:
            self.demand.first_token_timeout(t)
            return self._failed(request, t, request.decode_engine, "timeout", visible=False)
        if what == "gap" and request.serving:
            exclude(request, request.serving)
            return self._resume(request, t, "no token in time", code="timeout")
        if what == "resume" and phase is Phase.RESUMING:
            return self.resume_failed(ResumeFailed(t, request.id, request.asked, "it did not answer"))
        if what == "request":
            self._count_exit(request, t)
            return self._give_up(request, t, "the request took too long", code="timeout")
        return self._waited(request, t, what)

    def _waited(self, request: Request, t: float, what: str) -> list[AnyCommand]:
        """A request has waited in the router for as long as it may."""
        phase = request.phase
        if what == "retry" and phase is Phase.PAUSED:
            return self._enqueue(request, t, front=True) + self.fill_seats(t)
        if what == "queue" and phase is Phase.HELD:
            late = admission.too_late(self.pool, self.settings, self.demand, t, request)
            return [self._end_queued(request, refusal_of(request, late))]
        if what == "queue" and phase is Phase.QUEUED:
            wait_s = self.settings.serving.queue.max_wait_s
            return [self._end_queued(request, Refuse(request.id, 503, "queue_timeout", f"waited {wait_s:g} s", 1.0))]
        if what == "seat" and phase is Phase.SEAT:
            return self._last_call(request, t)
        return []

    def _last_call(self, request: Request, t: float) -> list[AnyCommand]:
        """Half the lease is nearly over: hand over to an engine's own queue, which renews it."""
        commands = self._seat(request, t, full=True)
        if commands or request.phase is not Phase.SEAT:
            self.pool.seats.take(request)
            return commands
        self._end(request)
        return [Refuse(request.id, 503, "no_engine", "no decode engine can take the request", 1.0)]


def exclude(request: Request, engine: str) -> None:
    """Never send a request to an engine again that failed it."""
    if engine not in request.excluded:
        request.excluded += (engine,)


def pause_s(request: Request) -> float:
    """How long a retry waits: up to a bound that doubles, spread over requests so that they do not come at once."""
    return PAUSE_S * float(1 << (request.attempts - 1)) * (request.id * _GOLDEN % 1.0)
