"""One request from its arrival to its end, by running the events that its router wrote down through control again.

What was decided about a request is not written for each of them: the same events give the same decisions, so they are
found out when somebody asks. Where the events are not on this host, its row has to do.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from narwhal.control import Control
from narwhal.control import commands as c
from narwhal.control import events as e
from narwhal.control.state import Request
from narwhal.diagnose.document import LifeStep, RequestLife, Why
from narwhal.diagnose.health import change_words
from narwhal.diagnose.history import Life
from narwhal.diagnose.why import Answer, Told, UnknownError
from narwhal.simulate import ReplayError, steps_around

Json = dict[str, Any]
_WAITS = {
    "queue": "waits in the router: every prefill engine has its share of prompts, or decode has no room",
    "seat": "waits for a decode engine with room",
    "retry": "waits to be tried again",
}


def why_request(told: Told, asked: str) -> Answer:
    """The life of a request, by its `x-request-id` or its number. Raises `UnknownError`."""
    row, life = _row(told, asked)
    number = row["request"] if row else int(asked) if asked.isdecimal() else 0
    watched = _replayed(told.events, number, row) if number else None
    if watched is None and row is None:
        hint = "its row is written at its end; until then ask by its number, on the router's host"
        raise UnknownError(f"request {asked!r} is not in the journal: {hint}")
    told_life = _of_row(row) if watched is None and row else _of_events(row, number, watched)
    changes = _changes(row, life)
    document = Why(question="request", source=told.source, now_t=told.now_t, request=told_life, changes=changes)
    return Answer(document, [*_head(row, number), *_lines(told_life), *_end(row, told_life, changes)])


def _row(told: Told, asked: str) -> tuple[Json | None, Life]:
    """Its row, the latest where a number was given again by a later life."""
    for life in reversed(told.history.lives):
        found = [row for row in life.requests if asked in (row["id"], str(row["request"]))]
        if found:
            return found[-1], life
    return None, told.life


# By events


@dataclass(slots=True)
class _Watched:
    """What a replay shows of one request."""

    number: int
    arrived_t: float = 0.0
    steps: list[LifeStep] = field(default_factory=list)
    price_s: float | None = None
    limit_s: float | None = None
    over: bool = False
    whole: bool = True
    """Whether no event is missing between its arrival and its end."""

    def add(self, t: float, what: str, words: str, engine: str = "") -> None:
        """Note a step."""
        self.steps.append(LifeStep(at_s=max(t - self.arrived_t, 0.0), what=what, engine=engine, words=words))


def _replayed(folder: Path | None, number: int, row: Json | None) -> _Watched | None:
    """The request's steps; None where its events are not kept, or cannot be read."""
    if folder is None:
        return None
    try:
        found = steps_around(folder, number, row["arrived_t"] if row else None)
    except ReplayError:
        return None
    if found is None:
        return None
    control, steps = found
    watched = _Watched(number)
    for step in steps:
        if step is None:
            watched.whole = False
            break
        _follow(control, step, watched)
        if watched.over:
            break
    return watched if watched.steps else None


def _follow(control: Control, event: e.AnyEvent, watched: _Watched) -> None:
    """Give control an event, and note what it means for the request."""
    mine = getattr(event, "request", None) == watched.number
    if mine and isinstance(event, e.RequestArrived) and watched.steps:
        watched.over = True  # its number was given again by the next start: the one before ended with its router
        return
    if mine and isinstance(event, e.RequestArrived):
        _arrives(event, watched)
    elif mine and watched.steps:
        _happened(event, control.pool.requests.get(watched.number), watched)
    before = {engine.id: engine.backlog_s(event.t) for engine in control.pool.prefill} if mine else {}
    commands = control.handle(event)
    request = control.pool.requests.get(watched.number)
    if mine and isinstance(event, e.RequestArrived) and request is not None:
        _priced(control, request, event.t, before, watched)
    for command in commands:
        if getattr(command, "request", None) == watched.number:
            _commanded(control, command, event.t, watched)
    if mine and isinstance(event, (e.RequestFinished, e.RequestCancelled)):
        watched.over = True


def _arrives(event: e.RequestArrived, watched: _Watched) -> None:
    watched.arrived_t = event.started_t if 0 <= event.started_t <= event.t else event.t
    guessed = f"about {event.prompt_tokens} prompt tokens, at most {event.max_tokens} generated"
    watched.add(event.t, "arrived", guessed + (", cannot be split over two legs" if event.whole else ""))


def _priced(control: Control, request: Request, t: float, before: Json, watched: _Watched) -> None:
    settings, pool = control.settings, control.pool
    limit_s = request.ttft_s * (1 + settings.serving.margin)
    watched.limit_s = limit_s
    if not request.price_s:
        watched.add(t, "priced", f"let in without a price (TTFT target {request.ttft_s:.2f} s)")
        return
    watched.price_s = request.price_s
    handoff_s = pool.handoff_s if pool.prefill and pool.decode and len(pool.requests) > 1 else 0.0
    waited_s = max(t - request.arrived_t, 0.0)
    queue_s = max(request.price_s - request.cost_s - handoff_s - waited_s, 0.0)
    least = f", the least backlog of an engine was {min(before.values()):.3f} s" if before else ""
    words = (
        f"price {request.price_s:.3f} s of {limit_s:.2f} s: own prefill {request.cost_s:.3f}, backlog and slack"
        f" {queue_s:.3f}, handoff {handoff_s:.3f}, on its way {waited_s:.3f}{least}"
    )
    watched.add(t, "priced", words)


def _happened(event: e.AnyEvent, request: Request | None, watched: _Watched) -> None:
    """An event about the request itself."""
    match event:
        case e.PrefillFinished():
            tokens = f"{event.prompt_tokens} prompt tokens" if event.prompt_tokens else "its KV is there"
            watched.add(event.t, "prefilled", f"leg 1 answered: {tokens}", request.prefill_engine if request else "")
        case e.FirstToken():
            watched.add(event.t, "first_token", "the first token goes to its client")
        case e.LegFailed():
            status = f", HTTP {event.status}" if event.status else ""
            watched.add(event.t, "failed", f"its {event.leg} leg failed: {event.cause}{status}", event.engine)
        case e.DeadlinePassed():
            watched.add(event.t, "late", f"the deadline {event.what} passed")
        case e.ResumeFailed():
            watched.add(event.t, "failed", f"it is not known how its stream goes on: {event.reason}", event.engine)
        case e.RequestFinished():
            watched.add(event.t, "ended", f"served whole: {event.completion_tokens} tokens")
        case e.RequestCancelled():
            watched.add(event.t, "ended", "its client left, or the router ended it")
        case _:
            return


def _commanded(control: Control, command: c.AnyCommand, t: float, watched: _Watched) -> None:
    """What control had done for the request."""
    match command:
        case c.Wait():
            watched.add(t, "waits", f"{_WAITS.get(command.what, command.what)}, for {command.until - t:.2f} s at most")
        case c.StartPrefill():
            watched.add(t, "prefill", f"leg 1 goes to {command.engine}{_backlogs(control, t)}", command.engine)
        case c.StartDecode():
            words = f"leg 2 goes to {command.engine}, with the KV of {command.producer}{_rooms(control)}"
            watched.add(t, "decode", words, command.engine)
        case c.StartWhole():
            words = f"both phases go to {command.engine}, without a handoff{_backlogs(control, t)}"
            watched.add(t, "whole", words, command.engine)
        case c.Resume():
            watched.add(t, "resume", "its engine is lost: where its text stands is asked for", command.engine)
        case c.Refuse() | c.Abort():
            retry_s = command.retry_after_s if isinstance(command, c.Refuse) else 0.0
            retry = f"; may pass in {retry_s:.1f} s" if retry_s else ""
            watched.add(t, "refused", f"{command.status} {command.code}: {command.message}{retry}")
            watched.over = True
        case _:
            return


def _backlogs(control: Control, t: float) -> str:
    """Backlogs of the prefill engines once it is placed."""
    rows = [f"{engine.id} {engine.backlog_s(t):.3f} s" for engine in control.pool.prefill]
    return f"; backlogs with it: {', '.join(rows)}" if rows else ""


def _rooms(control: Control) -> str:
    """Occupancies of the decode engines once it is placed."""
    tpot_s = control.settings.slo.tpot_s
    rows = [f"{engine.id} {engine.occupancy(tpot_s):.0%}" for engine in control.pool.decode]
    return f"; full with it: {', '.join(rows)}" if rows else ""


def _of_events(row: Json | None, number: int, watched: _Watched | None) -> RequestLife:
    assert watched is not None
    return RequestLife(
        request=number,
        id=row["id"] if row else "",
        outcome=row["outcome"] if row else "",
        price_s=watched.price_s,
        limit_s=watched.limit_s,
        steps=watched.steps,
        complete=watched.whole,
    )


# By its row


def _of_row(row: Json) -> RequestLife:
    steps = [LifeStep(at_s=0.0, what="arrived", words=f"{row['prompt_tokens']} prompt tokens")]
    moments: Sequence[tuple[float | None, str, str, str]] = (
        (row.get("queued_s"), "prefill", "its first leg is sent", row["prefill_engine"] or row["decode_engine"]),
        (row["prefilled_s"], "prefilled", "leg 1 answered", row["prefill_engine"]),
        (row["ttft_s"], "first_token", "the first token goes to its client", row["decode_engine"]),
        (row["total_s"], "ended", f"{row['outcome']} {row['code']}".strip(), row["decode_engine"]),
    )
    steps += [
        LifeStep(at_s=at, what=what, engine=who, words=words) for at, what, words, who in moments if at is not None
    ]
    return RequestLife(request=row["request"], id=row["id"], outcome=row["outcome"], steps=steps, complete=False)


def _changes(row: Json | None, life: Life) -> list[Json]:
    """What its engines went through while it ran."""
    if row is None:
        return []
    engines, begin_t = {row["prefill_engine"], row["decode_engine"]} - {""}, row["arrived_t"]
    end_t = begin_t + row["total_s"]
    return [
        change
        for change in life.changes
        if begin_t <= change["t"] <= end_t
        and engines & {change.get("engine"), change.get("producer"), change.get("consumer")}
    ]


def _head(row: Json | None, number: int) -> list[str]:
    if row is None:
        return [f"request {number}: not over yet"]
    code = f" ({row['code']})" if row["code"] else ""
    met = "within its targets" if row["slo_met"] else "targets missed"
    return [
        f"request {row['request']}, {row['id']}: {row['outcome']}{code}, {met}; tenant {row['tenant']}, {row['route']}"
    ]


def _lines(life: RequestLife) -> list[str]:
    return [f"  {step.at_s:8.3f} s  {step.what:<12}{_with(step)}" for step in life.steps]


def _with(step: LifeStep) -> str:
    return f"{step.engine}: {step.words}" if step.engine and step.engine not in step.words else step.words


def _end(row: Json | None, life: RequestLife, changes: Sequence[Json]) -> list[str]:
    lines = [f"  meanwhile {change_words(change)}" for change in changes]
    if row is not None:
        ttft = "no token came" if row["ttft_s"] is None else f"first token after {row['ttft_s']:.3f} s"
        tpot = "" if row["tpot_s"] is None else f", {1e3 * row['tpot_s']:.1f} ms between tokens"
        went = f", {row['retries']} retries" if row["retries"] else ""
        went += f", went on elsewhere {row['continued']} times" if row["continued"] else ""
        waited = row.get("queued_s")
        queued = f", {waited:.3f} s in the queue" if waited is not None else ""
        lines.append(f"  {ttft}{tpot}{queued}{went}; {row['total_s']:.3f} s in all")
    if not life.complete:
        lines.append(
            "  (from its row alone: price, placement and waits are found on the router's host, or with --journal)"
        )
    return lines
