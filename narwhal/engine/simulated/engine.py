"""The engine: drives the scheduler with real time, moves KV to and from its peers, and counts.

One timer runs at a time: the end of the step in progress. A step starts when the one before was due to end, not when
the timer fired, so a busy machine does not slow the engine down.
"""

import asyncio
import os
import sys
import time
import uuid
from collections.abc import Coroutine
from typing import Any, Protocol

from narwhal.engine.simulated.blocks import CONTENT_BYTES
from narwhal.engine.simulated.exposition import cache_config, metric_values
from narwhal.engine.simulated.faults import Fault, Faults
from narwhal.engine.simulated.metrics import Metrics
from narwhal.engine.simulated.peers import Consumer, Free, PeerError, Producer, Renew
from narwhal.engine.simulated.request import Phase, Sequence, Source
from narwhal.engine.simulated.scheduler import Scheduler, Step, Token
from narwhal.engine.simulated.settings import Settings
from narwhal.engine.simulated.timing import transfer_s

_MOST_LAG_S = 0.5
"""An engine that is later than this starts its next step from now on."""
_CRASH_CODE = 137


class Sink(Protocol):
    """Whoever waits for the tokens of a sequence."""

    def token(self, token: Token, now: float) -> None:
        """A token came."""

    def failed(self) -> None:
        """The sequence ended without one."""


class SimulatedEngine:
    """Scheduler, peers, faults and metrics of one engine. Give it sequences; it gives their sinks the tokens."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.engine_id = str(uuid.uuid4())
        """Fresh each start: with the start time, the generation."""
        self.started_at_s = time.time()
        self.faults = Faults()
        self.metrics = Metrics(settings.model, self.started_at_s)
        profile = settings.profile
        self.scheduler = Scheduler(
            profile,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            kv_lease_s=settings.kv_lease_s,
            speed=settings.speed,
        )
        bandwidth = settings.bandwidth_bytes_per_s
        self._bandwidth_bytes_per_s = bandwidth or profile.transfer.bandwidth_bytes_per_s * settings.speed
        self._block_bytes = profile.kv_bytes_per_token * profile.block_tokens
        layout = f"{settings.model}/{profile.block_tokens}/{profile.kv_bytes_per_token}"
        self._producer = Producer(self.engine_id, layout, self)
        self._consumer = Consumer(self.engine_id, layout, settings.handshake_timeout_s)
        self.side_channel_port = settings.side_channel_port
        self._loop = asyncio.get_running_loop()
        self._sinks: dict[str, Sink] = {}
        self.idle = asyncio.Event()
        """Set while no sequence runs or waits."""
        self.idle.set()
        self._last_token_t: dict[str, tuple[float, float]] = {}
        """First and newest token's time of each sequence."""
        self._step_end: asyncio.TimerHandle | None = None
        self._wake: asyncio.TimerHandle | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._beat: asyncio.TimerHandle | None = None
        self._due_t = 0.0

    async def start(self) -> None:
        """Open the side channel. Raises `OSError`."""
        self.side_channel_port = await self._producer.listen(self.settings.host, self.settings.side_channel_port)

    def close(self) -> None:
        """Stop everything."""
        self._producer.close()
        self._consumer.drop(None)
        for timer in (self._step_end, self._wake, self._beat):
            if timer is not None:
                timer.cancel()
        for task in list(self._tasks.values()):
            task.cancel()

    @property
    def request_count(self) -> int:
        """Sequences that run or wait."""
        return len(self._sinks)

    def submit(self, sequence: Sequence, sink: Sink) -> None:
        """Take a sequence; its sink hears of every token."""
        self._sinks[sequence.id] = sink
        self.idle.clear()
        self.scheduler.add(sequence, self._loop.time())
        self._start_beat()
        self.kick()

    def abort(self, sequence: Sequence) -> None:
        """End a sequence nobody waits for; another engine may free the KV it kept for it."""
        if sequence.phase is Phase.ended:
            self._forget(sequence)
            return
        if sequence.source is not None:
            self.refuse_kv(sequence.source)
        task = self._tasks.pop(sequence.id, None)
        if task is not None:
            task.cancel()
        self.scheduler.abort(sequence)
        self._forget(sequence)
        self.kick()

    def stop(self, sequence: Sequence) -> None:
        """End a sequence whose text is complete; `ended` counts it."""
        self.scheduler.abort(sequence)

    def next_suffix(self) -> str:
        """What makes the id of a sequence unique; the client chooses the rest of it."""
        return uuid.uuid4().hex[:8]

    def refuse_kv(self, source: Source) -> None:
        """Tell a producer that nobody will fetch, or has still to fetch, this KV."""
        address = (source.host, source.port)
        if not self._consumer.tell(address, Free(source.request_id)):
            self._run(f"free {source.request_id}", self._free_after_handshake(address, source.request_id))

    def ended(self, sequence: Sequence, reason: str) -> None:
        """Count a sequence that its reader has ended, or that has ended by itself."""
        now = self._loop.time()
        self.metrics.success[reason] += 1
        self.metrics.observe("vllm:e2e_request_latency_seconds", now - sequence.arrived_t)
        first_t, last_t = self._last_token_t.get(sequence.id, (now, now))
        self.metrics.observe("vllm:request_decode_time_seconds", last_t - first_t)
        if len(sequence.output) > 1:
            per_token_s = (last_t - first_t) / (len(sequence.output) - 1)
            self.metrics.observe("vllm:request_time_per_output_token_seconds", per_token_s)
        self._forget(sequence)

    # --- steps

    def kick(self) -> None:
        """Begin a step unless one is in progress."""
        now = self._loop.time()
        if self._step_end is not None or self.faults.hung(now, "all"):
            return
        prefill, decode = not self.faults.hung(now, "prefill"), not self.faults.hung(now, "decode")
        step = self.scheduler.begin(now, prefill=prefill, decode=decode)
        for sequence in step.fetches:
            self._run(sequence.id, self._fetch(sequence))
        if step.work:
            if now - self._due_t > _MOST_LAG_S:
                self._due_t = now
            self._due_t += step.duration_s * self.faults.slowness(now)
            self._step_end = self._loop.call_at(self._due_t, self._end_step, step)
        else:
            self._due_t = 0.0
            self._wake_at_expiry()

    def _end_step(self, step: Step) -> None:
        self._step_end = None
        now = self._loop.time()
        if self.faults.hung(now, "all"):
            self._step_end = self._loop.call_later(0.1, self._end_step, step)
            return
        tokens = self.scheduler.finish(step, now)
        if tokens and self.faults.strike(now, "crash"):
            sys.stderr.write("fault: crash\n")
            os._exit(_CRASH_CODE)
        for token in tokens:
            self._time_token(token.sequence, now)
            sink = self._sinks.get(token.sequence.id)
            if sink is not None:
                sink.token(token, now)
        self.kick()

    def _time_token(self, sequence: Sequence, now: float) -> None:
        times = self._last_token_t.get(sequence.id)
        if times is None:
            started_t = sequence.started_t or now
            self.metrics.observe("vllm:time_to_first_token_seconds", now - sequence.arrived_t)
            self.metrics.observe("vllm:request_queue_time_seconds", started_t - sequence.arrived_t)
            self.metrics.observe("vllm:request_prefill_time_seconds", now - started_t)
            self._last_token_t[sequence.id] = (now, now)
        else:
            self.metrics.observe("vllm:inter_token_latency_seconds", now - times[1])
            self._last_token_t[sequence.id] = (times[0], now)

    def _forget(self, sequence: Sequence) -> None:
        self._sinks.pop(sequence.id, None)
        self._last_token_t.pop(sequence.id, None)
        if not self._sinks:
            self.idle.set()

    def _wake_at_expiry(self) -> None:
        """With nothing to do, look again when a pin expires: somebody may wait for its blocks."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        expiry_t = self.scheduler.next_expiry_t
        if expiry_t is not None:
            self._wake = self._loop.call_at(expiry_t, self.kick)

    # --- KV from peers

    async def _fetch(self, sequence: Sequence) -> None:
        source = sequence.source
        assert source is not None
        address = (source.host, source.port)
        lacking = -(-len(sequence.prompt) // self.scheduler.block_tokens)
        lacking -= sequence.cached_tokens // self.scheduler.block_tokens
        blocks = list(source.blocks[max(0, len(source.blocks) - lacking) :]) if lacking else []
        started_t = self._loop.time()
        try:
            contents = await self._consumer.fetch(address, source.engine_id, blocks) if blocks else []
        except PeerError as error:
            sys.stderr.write(f"KV of {sequence.id}: {error}\n")
            self._fetch_failed(sequence)
            return
        now = self._loop.time()
        if self.faults.strike(now, "corrupt_kv", side="consumer", engine=source.engine_id):
            contents = [bytes(CONTENT_BYTES)] * len(contents)
        if blocks:
            self._count_transfer(len(blocks), now - started_t)
        self.refuse_kv(source)
        self.scheduler.kv_arrived(sequence, contents, now)
        self.kick()

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run work in the background until it ends or is cancelled by name; one of a name at a time."""
        if name in self._tasks:
            work.close()
            return
        task = self._tasks[name] = self._loop.create_task(work)
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    def _fetch_failed(self, sequence: Sequence) -> None:
        self.metrics.failed_transfers += 1
        sink = self._sinks.get(sequence.id)
        self.scheduler.kv_failed(sequence)
        self._forget(sequence)
        if sink is not None:
            self.metrics.success["error"] += 1
            sink.failed()
        self.kick()

    def _count_transfer(self, block_count: int, elapsed_s: float) -> None:
        self.metrics.observe("vllm:nixl_xfer_time_seconds", elapsed_s)
        self.metrics.observe("vllm:nixl_post_time_seconds", min(elapsed_s, 0.0005))
        self.metrics.observe("vllm:nixl_bytes_transferred", float(block_count * self._block_bytes))
        self.metrics.observe("vllm:nixl_num_descriptors", float(block_count))

    async def _free_after_handshake(self, address: tuple[str, int], request_id: str) -> None:
        try:
            await self._consumer.meet(address)
        except PeerError:
            self.metrics.failed_notifications += 1
            return
        self._consumer.tell(address, Free(request_id))

    def _start_beat(self) -> None:
        if self._beat is None and any(sequence.source for sequence in self.scheduler.waiting):
            self._beat = self._loop.call_later(self.settings.kv_lease_s / 6, self._renew)

    def _renew(self) -> None:
        """Renew the leases of what waits in the queue; the first word to a stranger only introduces."""
        self._beat = None
        by_address: dict[tuple[str, int], list[str]] = {}
        if not self.faults.hung(self._loop.time(), "all"):
            for sequence in self.scheduler.waiting:
                if sequence.source is not None:
                    address = (sequence.source.host, sequence.source.port)
                    by_address.setdefault(address, []).append(sequence.source.request_id)
        for address, request_ids in by_address.items():
            if not self._consumer.tell(address, Renew(request_ids)):
                self._run(f"meet {address}", self._introduce(address))
        self._start_beat()

    async def _introduce(self, address: tuple[str, int]) -> None:
        try:
            await self._consumer.meet(address)
        except PeerError:
            self.metrics.failed_notifications += 1

    # --- KV for peers (`peers.Store`)

    def read_blocks(self, blocks: list[int]) -> list[bytes]:
        """Contents of blocks, as they are now."""
        if not all(0 <= block < self.scheduler.pool.count for block in blocks):
            raise PeerError("there is no such block")
        contents = self.scheduler.pool.read_for_peer(blocks)
        if self.faults.strike(self._loop.time(), "corrupt_kv", side="producer"):
            contents = [bytes(CONTENT_BYTES)] * len(contents)
        return contents

    def transfer_s(self, block_count: int) -> float:
        """Seconds that so many blocks take on the wire."""
        return transfer_s(self.settings.profile, block_count * self._block_bytes, self._bandwidth_bytes_per_s)

    def release_pin(self, request_id: str) -> None:
        """Free what was kept for a request."""
        if self.scheduler.release_pin(request_id):
            self.kick()
        else:
            self.metrics.late_notifications += 1
            sys.stderr.write(f"Potentially invalid KV blocks for unrecognized request {request_id}\n")

    def renew_pin(self, request_id: str) -> None:
        """Start a lease anew."""
        self.scheduler.renew_pin(request_id, self._loop.time())

    def admits(self, engine_id: str) -> bool:
        """Whether a peer may talk to this engine now."""
        return self.faults.strike(self._loop.time(), "drop_peer", engine=engine_id) is None

    def hung(self) -> bool:
        """Whether the engine answers nobody."""
        return self.faults.hung(self._loop.time(), "all")

    # --- faults

    def add_fault(self, fault: Fault) -> None:
        """Let a fault begin."""
        now = self._loop.time()
        self.faults.add(fault, now)
        if fault.kind == "drop_peer":
            self._producer.drop(fault.engine)
            self._consumer.drop(fault.engine)
        if fault.duration_s is not None:
            self._loop.call_later(fault.duration_s + 0.01, self.kick)

    def clear_faults(self) -> None:
        """End all faults, and go on."""
        self.faults.clear()
        self.kick()

    # --- metrics

    def metrics_page(self) -> str:
        """The metrics in text format."""
        return self.metrics.page(metric_values(self.scheduler, self.metrics), cache_config(self.settings))
