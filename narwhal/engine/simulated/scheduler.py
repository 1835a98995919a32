"""The scheduler of a simulated engine: continuous batching, chunked prefill, KV room, preemption. No clock, no I/O.

A driver calls `begin(now)` to form a step, waits `step.duration_s`, and calls `finish(step, now)` for its tokens.
In a step every decoding sequence computes one token, and prompts share what is left of `max_num_batched_tokens`.
A decoding sequence that finds no block preempts the newest one, which starts over later (recompute).

A sequence with a `source` first gets its blocks and appears in `step.fetches`; the driver moves the KV and calls
`kv_arrived` or `kv_failed`. A sequence with `keep_kv` leaves its blocks pinned until `release_pin` or the lease's end.
"""

from collections import deque
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from narwhal.engine.simulated.blocks import BlockPool, contents_of, next_content
from narwhal.engine.simulated.request import Phase, Sequence
from narwhal.engine.simulated.sampling import Model, natural_tokens
from narwhal.engine.simulated.timing import Load, step_s
from narwhal.engine.simulated.tokenizer import EOS
from narwhal.fleet import Profile


@dataclass(slots=True)
class Step:
    """One step: what it computes, how long it takes, and which sequences want KV from elsewhere."""

    work: list[tuple[Sequence, int]]
    """Sequences and how many tokens each computes."""
    duration_s: float
    """0 when there is nothing to compute."""
    fetches: list[Sequence] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Token:
    """A token that a step brought, and why the answer ends with it, if it does."""

    sequence: Sequence
    token: int
    finish_reason: str | None


@dataclass(slots=True)
class Pin:
    """Blocks kept for another engine."""

    blocks: list[int]
    expires_t: float


@dataclass(slots=True)
class Counts:
    """What the scheduler counted since the start."""

    preemptions: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0
    """Prompt tokens computed here, first time only."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    fetched_tokens: int = 0
    """Prompt tokens whose KV came from another engine."""
    queried_tokens: int = 0
    """Prompt tokens looked up in the prefix cache."""
    external_queried_tokens: int = 0
    generated_tokens: int = 0
    expired_pins: int = 0


class Scheduler:
    """The state of one engine. Times are seconds of any monotonic clock."""

    def __init__(
        self, profile: Profile, *, max_num_seqs: int, max_num_batched_tokens: int, kv_lease_s: float, speed: float = 1.0
    ) -> None:
        self.profile = profile
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.kv_lease_s = kv_lease_s
        self.speed = speed
        """Factor on the speed of steps."""
        self.block_tokens = profile.block_tokens
        self.pool = BlockPool(profile.kv_capacity_tokens // profile.block_tokens)
        self.waiting: deque[Sequence] = deque()
        self.fetching: dict[str, Sequence] = {}
        self.fetched: deque[Sequence] = deque()
        """Sequences whose KV has arrived and that wait for a place in the batch."""
        self.running: list[Sequence] = []
        self.pins: dict[str, Pin] = {}
        """Blocks kept for other engines, by sequence id."""
        self.counts = Counts()

    @property
    def next_expiry_t(self) -> float | None:
        """When the next pin expires; None without pins."""
        return min((pin.expires_t for pin in self.pins.values()), default=None)

    @property
    def busy(self) -> bool:
        """Whether `begin` may find something to do."""
        return bool(self.running or self.waiting or self.fetched)

    def add(self, sequence: Sequence, now: float) -> None:
        """Take a sequence into the queue. Its tokens and its answer must fit into the KV cache."""
        assert len(sequence.prompt) + sequence.max_tokens <= self.pool.count * self.block_tokens
        sequence.arrived_t = now
        sequence.contents = contents_of(sequence.prompt, self.block_tokens)
        self.waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """End a sequence wherever it stands, and free its blocks."""
        if sequence.phase is Phase.ended:
            return
        if sequence.phase is Phase.running:
            self.running.remove(sequence)
        elif sequence.phase is Phase.fetching:
            self.fetching.pop(sequence.id, None)
            if sequence in self.fetched:
                self.fetched.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._end(sequence)

    # --- handoff

    def kv_arrived(self, sequence: Sequence, contents: Items[bytes], now: float) -> None:
        """The KV of a fetching sequence is here: `contents` of the blocks that it lacked."""
        if self.fetching.pop(sequence.id, None) is None:
            return
        lacking = sequence.blocks[sequence.cached_tokens // self.block_tokens :]
        first = len(sequence.blocks) - len(lacking)
        for index, (block, content) in enumerate(zip(lacking, contents, strict=False), start=first):
            full = (index + 1) * self.block_tokens <= len(sequence.prompt)
            key = (sequence.cache_salt, sequence.contents[index]) if full else None
            self.pool.write(block, content, key)
        sequence.fetched_tokens = len(sequence.prompt) - sequence.cached_tokens
        sequence.computed_tokens = len(sequence.prompt) - 1  # the last token runs again, for its logits
        sequence.given_tokens = len(sequence.prompt)
        sequence.source = None
        self.counts.prompt_tokens += len(sequence.prompt)
        self.counts.cached_tokens += sequence.cached_tokens
        self.counts.fetched_tokens += sequence.fetched_tokens
        self.fetched.append(sequence)

    def kv_failed(self, sequence: Sequence) -> None:
        """The KV of a fetching sequence will not come: it ends."""
        self.abort(sequence)

    def renew_pin(self, sequence_id: str, now: float) -> bool:
        """Start a pin's lease anew; False when there is none of that name."""
        pin = self.pins.get(sequence_id)
        if pin is not None:
            pin.expires_t = now + self.kv_lease_s
        return pin is not None

    def release_pin(self, sequence_id: str) -> bool:
        """Free the blocks kept under a name; False when there are none, or no longer."""
        pin = self.pins.pop(sequence_id, None)
        if pin is not None:
            self.pool.show(pin.blocks[-1], None)
            self.pool.release(pin.blocks)
        return pin is not None

    def expire_pins(self, now: float) -> None:
        """Free what was kept beyond its lease."""
        for name in [name for name, pin in self.pins.items() if pin.expires_t <= now]:
            self.release_pin(name)
            self.counts.expired_pins += 1

    # --- steps

    def begin(self, now: float, *, prefill: bool = True, decode: bool = True) -> Step:
        """Form the next step. `prefill=False` or `decode=False` leaves that work undone (a hung engine)."""
        self.expire_pins(now)
        step = Step([], 0.0)
        load = Load()
        preemptions = self.counts.preemptions
        if decode:
            self._schedule_decode(step, load)
        budget = self.max_num_batched_tokens - load.streams
        if prefill:
            budget = self._schedule_chunks(step, load, budget)
        if decode:
            budget = self._admit_fetched(step, load, budget)
        if self.counts.preemptions == preemptions:  # else there is no room, and the preempted one comes first
            self._admit_waiting(step, load, budget, now, prefill=prefill)
        if step.work:
            step.duration_s = step_s(self.profile, load) / self.speed
        return step

    def finish(self, step: Step, now: float) -> list[Token]:
        """End a step: its KV is in the blocks, and these are its tokens. Sequences aborted meanwhile have none."""
        tokens = []
        for sequence, count in step.work:
            if sequence.phase is not Phase.running:
                continue
            self._write(sequence, count)
            if sequence.computed_tokens == sequence.known_tokens:
                token = self._sample(sequence)
                tokens.append(token)
                if token.finish_reason is not None:
                    self.running.remove(sequence)
                    self._end(sequence, now if token.finish_reason == "length" else None)
        return tokens

    def _schedule_decode(self, step: Step, load: Load) -> None:
        for sequence in list(self.running):
            if sequence.phase is not Phase.running or sequence.prefilling:
                continue
            if self._grow(sequence):
                step.work.append((sequence, 1))
        step.work[:] = [work for work in step.work if work[0].phase is Phase.running]  # a later one may preempt
        for sequence, _ in step.work:
            load.add_stream(sequence.known_tokens)

    def _schedule_chunks(self, step: Step, load: Load, budget: int) -> int:
        for sequence in self.running:
            if sequence.prefilling and budget > 0:
                budget -= self._chunk(sequence, step, load, budget)
        return budget

    def _chunk(self, sequence: Sequence, step: Step, load: Load, budget: int) -> int:
        count = min(budget, sequence.known_tokens - sequence.computed_tokens)
        step.work.append((sequence, count))
        load.add_chunk(sequence.computed_tokens, count)
        return count

    def _admit_fetched(self, step: Step, load: Load, budget: int) -> int:
        while self.fetched and budget > 0 and len(self.running) < self.max_num_seqs:
            sequence = self.fetched.popleft()
            sequence.phase = Phase.running
            self.running.append(sequence)
            step.work.append((sequence, 1))
            load.add_stream(sequence.known_tokens)
            budget -= 1
        return budget

    def _admit_waiting(self, step: Step, load: Load, budget: int, now: float, *, prefill: bool) -> None:
        while self.waiting:
            sequence = self.waiting[0]
            local = sequence.source is None
            if local and (not prefill or budget <= 0 or len(self.running) >= self.max_num_seqs):
                return
            if not self._place(sequence):
                return
            self.waiting.popleft()
            if sequence.started_t is None:
                sequence.started_t = now
            if local:
                sequence.phase = Phase.running
                self.running.append(sequence)
                budget -= self._chunk(sequence, step, load, budget)
            else:
                sequence.phase = Phase.fetching
                self.fetching[sequence.id] = sequence
                step.fetches.append(sequence)

    # --- blocks

    def _place(self, sequence: Sequence) -> bool:
        """Hold blocks for all known tokens, cached ones first; False when there is no room."""
        known = sequence.known_tokens
        if sequence.output:  # preempted: the answer so far is computed again, too
            sequence.contents = contents_of(sequence.tokens(0, known), self.block_tokens)
        usable = len(sequence.prompt) if sequence.source else known - 1
        cached = self.pool.find(sequence.cache_salt, sequence.contents[: usable // self.block_tokens])
        need = -(-known // self.block_tokens) - len(cached)
        if need + self.pool.free_among(cached) > self.pool.free_count:
            return False
        self.pool.hold(cached)
        taken = self.pool.take(need)
        assert taken is not None
        sequence.blocks = cached + taken
        sequence.computed_tokens = sequence.cached_tokens = len(cached) * self.block_tokens
        if not sequence.output:
            self._count_start(sequence)
        return True

    def _count_start(self, sequence: Sequence) -> None:
        counts, prompt = self.counts, len(sequence.prompt)
        counts.queried_tokens += prompt
        if sequence.source is not None:
            counts.external_queried_tokens += prompt - sequence.cached_tokens
            return
        counts.prompt_tokens += prompt
        counts.cached_tokens += sequence.cached_tokens
        counts.computed_tokens += prompt - sequence.cached_tokens

    def _grow(self, sequence: Sequence) -> bool:
        """Make room for one more token, preempting the newest sequences; False when it was itself preempted."""
        while sequence.computed_tokens >= len(sequence.blocks) * self.block_tokens:
            taken = self.pool.take(1)
            if taken is not None:
                sequence.blocks += taken
                continue
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.computed_tokens = sequence.given_tokens = 0
        sequence.phase = Phase.waiting
        self.waiting.appendleft(sequence)
        self.counts.preemptions += 1

    def _write(self, sequence: Sequence, count: int) -> None:
        """Put the KV of the next `count` tokens into the blocks: full ones, and the last one of the prompt."""
        size, prompt = self.block_tokens, len(sequence.prompt)
        start, end = sequence.computed_tokens, sequence.computed_tokens + count
        sequence.computed_tokens = end
        if end <= sequence.given_tokens:
            return
        for index in range(start // size, end // size):
            content = self._content(sequence, index)
            self.pool.write(sequence.blocks[index], content, (sequence.cache_salt, content))
        if end == prompt and end % size:
            self.pool.write(sequence.blocks[end // size], sequence.contents[end // size])

    def _content(self, sequence: Sequence, index: int) -> bytes:
        """The content of a full block of prompt or answer."""
        size = self.block_tokens
        if (index + 1) * size <= len(sequence.prompt):
            return sequence.contents[index]
        previous = self.pool.read([sequence.blocks[index - 1]])[0] if index else b""
        return next_content(previous, sequence.tokens(index * size, (index + 1) * size))

    def _begin_model(self, sequence: Sequence) -> Model:
        """The model after the prompt, as its blocks tell it. The prompt may end with the beginning of the answer."""
        size, prompt = self.block_tokens, sequence.prompt
        contents = self.pool.read(sequence.blocks[: -(-len(prompt) // size)])
        own = sequence.seed.to_bytes(8, "little", signed=True)
        if len(prompt) % size and contents[-1] != sequence.contents[len(contents) - 1]:
            own += contents[-1]  # the last block is not full, and not what it should be
        if sequence.natural_end:
            began = Model(prompt[: len(prompt) - sequence.begun_tokens], contents, size, own)
            sequence.natural_tokens = natural_tokens(began.state) - sequence.begun_tokens
        return Model(prompt, contents, size, own)

    def _next_token(self, sequence: Sequence) -> int:
        known = sequence.known_tokens
        if sequence.model is None:
            sequence.model = self._begin_model(sequence)
        elif known % self.block_tokens:
            sequence.model.add(sequence.output[-1])
        else:
            sequence.model.fill(self.pool.read([sequence.blocks[known // self.block_tokens - 1]])[0])
        return sequence.model.choose(sequence.tokens(max(known - 3, 0), known))

    def _sample(self, sequence: Sequence) -> Token:
        token = self._next_token(sequence)
        count = len(sequence.output) + 1
        reason = "length" if count >= sequence.max_tokens else None
        forced = sequence.form.token(count - 1) if sequence.form is not None else None
        if forced is not None:
            token, reason = (forced, reason) if forced >= 0 else (EOS, "stop")
        elif count >= sequence.min_tokens and sequence.form is None:
            if sequence.natural_end and count >= sequence.natural_tokens:
                token, reason = EOS, "stop"
            elif token in sequence.stop_tokens:
                reason = "stop"
        sequence.output.append(token)
        self.counts.generated_tokens += 1
        return Token(sequence, token, reason)

    def _end(self, sequence: Sequence, now: float | None = None) -> None:
        """Free a sequence's blocks, or pin those of its prompt when it ended with KV to keep."""
        sequence.phase = Phase.ended
        if sequence.keep_kv and now is not None:
            kept = -(-len(sequence.prompt) // self.block_tokens)
            tail = len(sequence.prompt) % self.block_tokens
            if tail and len(sequence.output) > 1:  # the answer may have gone on in the prompt's last block
                previous = self.pool.read([sequence.blocks[kept - 2]])[0] if kept > 1 else b""
                self.pool.show(sequence.blocks[kept - 1], next_content(previous, sequence.prompt[-tail:]))
            self.pins[sequence.id] = Pin(sequence.blocks[:kept], now + self.kv_lease_s)
            self.pool.release(sequence.blocks[kept:])
            return
        self.pool.release(sequence.blocks)
        sequence.blocks = []
