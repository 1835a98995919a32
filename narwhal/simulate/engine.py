"""One simulated engine: chunked prefill, continuous batching, KV room, and waiting for it.

An iteration takes `a + max(b·tokens, d0 - a when streams decode) + c·attention + d1·streams + d2·kv` seconds
(at least `t_min` when it prefills; on an `additive` engine the sum stands in place of `max`); one without prompts
takes `d0 + d1·streams + d2·kv`. Prompts are served first in, first out, with `chunk` less the streams as the token
budget of an iteration. A request is taken in when there is a sequence and KV for what it has so far; when the batch
outgrows the KV, the youngest stream is preempted and computed again, as vLLM does. A producer holds the KV of a prompt
until it was fetched. A batch that only decodes is advanced over many iterations at once: the times of its iterations
are a closed form of the batch at its start (`Leap`), so leaping changes no result.
"""

from collections import deque
from heapq import heappop, heappush
from math import ceil, inf, sqrt

from narwhal.control import Curves
from narwhal.simulate.request import Place, Request


class Leap:
    """Iterations of an unchanged batch: when each ends, in closed form."""

    __slots__ = ("count", "growth_s", "interval_s", "start_t")

    def __init__(self, start_t: float, interval_s: float, growth_s: float, count: int) -> None:
        self.start_t = start_t
        self.interval_s = interval_s
        """Seconds of the first iteration."""
        self.growth_s = growth_s
        """Seconds by which each iteration is longer than the one before."""
        self.count = count
        """Iterations until something changes."""

    def end_t(self, count: int) -> float:
        """When the iteration number `count` (from 1) ends."""
        return self.start_t + (count * self.interval_s + 0.5 * self.growth_s * (count * (count - 1)))

    def ended(self, t: float) -> int:
        """How many iterations have ended at `t`."""
        if t >= self.end_t(self.count):
            return self.count
        count = max(0, min(self.count, int(self._root(t - self.start_t))))
        while count > 0 and self.end_t(count) > t:
            count -= 1
        while count < self.count and self.end_t(count + 1) <= t:
            count += 1
        return count

    def cut(self, t: float) -> bool:
        """End the leap with the iteration that runs at `t`; False when it ends no later anyway."""
        count = max(1, ceil(self._root(t - self.start_t)))
        while self.end_t(count) < t:
            count += 1
        while count > 1 and self.end_t(count - 1) >= t:
            count -= 1
        if count >= self.count:
            return False
        self.count = count
        return True

    def _root(self, elapsed_s: float) -> float:
        """The real number of iterations that take `elapsed_s` seconds."""
        q = 0.5 * self.growth_s
        if q <= 1e-15:
            return elapsed_s / self.interval_s
        p = self.interval_s - q
        return (sqrt(p * p + 4.0 * q * elapsed_s) - p) / (2.0 * q)


class Ended:
    """What an engine's iterations brought, as lists of requests in the order in which it happened."""

    __slots__ = ("finished", "first", "prefilled")

    def __init__(self) -> None:
        self.prefilled: list[Request] = []
        """Leg 1 is done; the KV waits to be fetched."""
        self.first: list[Request] = []
        """The first token is out."""
        self.finished: list[Request] = []
        """The last token is out."""


class Engine:
    """The state of one engine. The fleet calls it; it calls nobody.

    `taken` lists requests whose transfer is to start: the fleet empties it. After any call that adds work the fleet
    calls `start` when the engine is idle, or `interrupt` when it leaps.
    """

    __slots__ = (
        "additive", "alive", "curves", "ends", "held_tokens", "id", "iterations", "joined", "kv_tokens", "leap",
        "preemptions", "prefills", "ready", "seqs", "slow", "streams", "taken", "turn_t", "version", "waiting",
        "waiting_prefills", "work",
    )  # fmt: skip

    def __init__(self, id: str, curves: Curves, *, additive: bool = False) -> None:
        self.id = id
        self.curves = curves
        self.additive = additive
        """Whether prompts and streams of one iteration share no work."""
        self.alive = True
        self.slow = 1.0
        """Factor on the time of an iteration: co-runners on the same card."""
        self.version = 0
        """Rises when the planned end of an iteration changes; an older plan is void."""
        self.turn_t = inf
        """When the planned iterations end; infinite while the engine is idle."""
        self.leap: Leap | None = None
        self.work: list[tuple[Request, int]] = []
        """Prompt tokens of the running iteration."""
        self.iterations = 0
        """Decode iterations since the start."""
        self.streams: dict[int, Request] = {}
        self.ends: list[tuple[int, int, Request]] = []
        """Heap of the streams by the iteration in which they end; entries of removed streams are skipped."""
        self.joined: list[Request] = []
        """Streams that have no token of this engine yet."""
        self.kv_tokens = 0
        """KV that the batch reads: prompts plus tokens produced."""
        self.held_tokens = 0
        """KV in use: by what runs, what is in transfer, and what waits to be fetched."""
        self.preemptions = 0
        self.seqs = 0
        """Sequences that are taken."""
        self.prefills: deque[Request] = deque()
        self.waiting_prefills: deque[Request] = deque()
        """Prompts that wait for a sequence or KV."""
        self.waiting: deque[Request] = deque()
        """Streams that wait for a sequence or KV; their transfer has not begun."""
        self.ready: list[Request] = []
        """Streams whose KV is here; they join at the next iteration."""
        self.taken: list[Request] = []

    # What the fleet tells the engine

    def add_prompt(self, request: Request, t: float, *, whole: bool) -> None:
        """Take leg 1, or a whole request."""
        request.place = Place.WHOLE if whole else Place.PREFILL
        request.done_tokens = request.cached_tokens
        request.need_tokens = request.prompt_tokens
        self.waiting_prefills.append(request)
        self._admit(t)

    def add_stream(self, request: Request, t: float) -> None:
        """Take leg 2; its KV is somewhere else."""
        request.place = Place.TRANSFER
        request.need_tokens = request.prompt_tokens
        self.waiting.append(request)
        self._admit(t)

    def arrived(self, request: Request) -> None:
        """The KV of a stream that `taken` named is here."""
        self.ready.append(request)

    def release(self, tokens: int, t: float) -> None:
        """KV of a finished leg 1 was fetched, or is not wanted any more."""
        self.held_tokens -= tokens
        self._admit(t)

    def remove(self, request: Request, t: float) -> None:
        """Forget a request that was aborted."""
        if request.id in self.streams:
            request.produced = request.produced_at(self.iterations)
            self._leave(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        elif request in self.waiting_prefills:
            self.waiting_prefills.remove(request)
        else:
            if request in self.prefills:
                self.prefills.remove(request)
            elif request in self.ready:
                self.ready.remove(request)
            self.work = [(other, tokens) for other, tokens in self.work if other is not request]
            self.seqs -= 1
            self.held_tokens -= request.need_tokens
        self._admit(t)

    # Time

    @property
    def idle(self) -> bool:
        """Whether no iteration runs."""
        return self.turn_t == inf

    def start(self, t: float) -> bool:
        """Begin the next iterations; False when there is nothing to do. `turn_t` says when they end."""
        for request in self.ready:
            self._join(request)
        self.ready.clear()
        self.version += 1
        self.leap = None
        self.work = []
        preempted = self._make_room()
        if self.prefills:
            self._start_mixed(t)
        elif self.streams:
            self._start_leap(t, brief=preempted)
        else:
            self.turn_t = inf
            return False
        return True

    def interrupt(self, t: float) -> bool:
        """Something changed at `t`: end a leap with the iteration that runs. True when `turn_t` is now earlier."""
        if self.leap is None or not self.leap.cut(t):
            return False
        self.turn_t = self.leap.end_t(self.leap.count)
        self.version += 1
        return True

    def turn(self) -> Ended:
        """The planned iterations ended. The engine is idle afterwards, until `start`."""
        ended = Ended()
        steps = self.leap.count if self.leap is not None else 1
        self.turn_t = inf
        self.leap = None
        if self.streams:
            self.iterations += steps
            self.kv_tokens += len(self.streams) * steps
            self.held_tokens += len(self.streams) * steps
            ended.first += self.joined
            self.joined = []
            self._finish(ended)
        if self.work:
            self._prefilled(ended)
        self._admit(0.0)
        return ended

    def produced(self, t: float) -> int:
        """Decode iterations that have ended at `t`."""
        return self.iterations + (self.leap.ended(t) if self.leap is not None else 0)

    @property
    def empty(self) -> bool:
        """Whether no request is here; pinned handoffs do not count."""
        return not (self.seqs or self.waiting or self.waiting_prefills)

    def load(self, t: float) -> tuple[int, int, int]:
        """What its metrics say: requests running, requests waiting, KV tokens in use."""
        return self.seqs, len(self.waiting) + len(self.waiting_prefills), self.held_tokens + self._growth(t)

    # Rules

    def _growth(self, t: float) -> int:
        """KV that the running leap has added by `t`."""
        return len(self.streams) * self.leap.ended(t) if self.leap is not None else 0

    def _admit(self, t: float) -> None:
        """Let in what fits: streams before prompts, each first in, first out. An empty engine takes anything."""
        for waiting in (self.waiting, self.waiting_prefills):
            while waiting and self.seqs < self.curves.max_num_seqs:
                request = waiting[0]
                # room for the next token of each stream stays free, else it would be preempted at once
                taken = self.held_tokens + self._growth(t) + len(self.streams) + 1
                room = self.curves.kv_capacity_tokens - taken
                if request.need_tokens > room and self.held_tokens:
                    break
                waiting.popleft()
                self.seqs += 1
                self.held_tokens += request.need_tokens
                (self.taken if waiting is self.waiting else self.prefills).append(request)

    def _make_room(self) -> bool:
        """Preempt the youngest streams while the next token of each has no room; they are computed again."""
        before = self.preemptions
        streams, capacity = self.streams, self.curves.kv_capacity_tokens
        while len(streams) > 1 and self.held_tokens + len(streams) > capacity:
            request = streams[next(reversed(streams))]
            request.produced = request.produced_at(self.iterations)
            self._leave(request)
            self.preemptions += 1
            request.place = Place.WHOLE
            request.done_tokens = 0
            request.need_tokens = request.prompt_tokens + request.produced
            self.waiting_prefills.appendleft(request)
        return self.preemptions > before

    def _leave(self, request: Request) -> None:
        """Take a stream out of the batch, with what it has produced so far."""
        del self.streams[request.id]
        tokens = request.prompt_tokens + request.produced
        self.kv_tokens -= tokens
        self.held_tokens -= tokens
        self.seqs -= 1
        if request in self.joined:
            self.joined.remove(request)

    def _join(self, request: Request) -> None:
        """Make a request a stream of the batch."""
        request.place = Place.DECODE
        request.start_iteration = request.seen_iteration = self.iterations
        self.streams[request.id] = request
        self.kv_tokens += request.prompt_tokens + request.produced
        heappush(self.ends, (self.iterations + request.left, request.id, request))
        self.joined.append(request)

    def _start_leap(self, t: float, *, brief: bool) -> None:
        """Decode alone; a single iteration when others may be let in after it (`brief`)."""
        ends, streams = self.ends, self.streams
        while ends[0][1] not in streams or streams[ends[0][1]].end_iteration() != ends[0][0]:
            heappop(ends)
        curves, n = self.curves, len(streams)
        count = 1 if self.joined or brief else ends[0][0] - self.iterations
        count = max(1, min(count, (curves.kv_capacity_tokens - self.held_tokens) // n))
        interval_s = curves.d0_s + curves.d1_s * n + curves.d2_s * self.kv_tokens
        self.leap = Leap(t, interval_s * self.slow, curves.d2_s * n * self.slow, count)
        self.turn_t = self.leap.end_t(count)

    def _start_mixed(self, t: float) -> None:
        """One iteration with prompt tokens."""
        curves, n = self.curves, len(self.streams)
        budget = max(curves.chunk_tokens - n, 1)
        tokens, attention = 0, 0.0
        for request in self.prefills:
            take = min(request.need_tokens - request.done_tokens, budget - tokens)
            if take <= 0 and tokens:
                break
            before = request.done_tokens
            attention += (before + take) ** 2 - before**2
            tokens += take
            self.work.append((request, take))
        compute_s = curves.b_s * tokens
        if n:
            weights_s = curves.d0_s - curves.a_s
            compute_s = compute_s + max(weights_s, 0.0) if self.additive else max(compute_s, weights_s)
        # the constant part is the server's own time, which company on the card does not lengthen (H200, 2026-11-30)
        compute_s += curves.c_s * attention + curves.d1_s * n + curves.d2_s * self.kv_tokens
        self.turn_t = t + max(curves.a_s + compute_s * self.slow, curves.t_min_s)

    def _finish(self, ended: Ended) -> None:
        ends, streams = self.ends, self.streams
        while ends and ends[0][0] <= self.iterations:
            end, number, request = heappop(ends)
            if streams.get(number) is not request or request.end_iteration() != end:
                continue
            request.produced = request.output_tokens
            self._leave(request)
            ended.finished.append(request)

    def _prefilled(self, ended: Ended) -> None:
        for request, tokens in self.work:
            request.done_tokens += tokens
            if request.done_tokens < request.need_tokens:
                continue
            self.prefills.remove(request)
            if request.place is Place.PREFILL:
                self.seqs -= 1
                ended.prefilled.append(request)
                continue
            request.produced += 1  # the last chunk of a prompt also yields a token
            self.held_tokens += 1
            ended.first.append(request)
            self._join(request)
            self.joined.pop()
            if not request.left:
                self._leave(request)
                ended.finished.append(request)
        self.work = []
