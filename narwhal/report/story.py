"""The life of one request, from its client's record and the router's row of it."""

from collections.abc import Iterator, Sequence

from narwhal.measure import BenchRequest
from narwhal.report.document import Incident, Part, RequestStory
from narwhal.report.errors import ReportError
from narwhal.report.reading import REQUESTS
from narwhal.report.rows import Row, journal
from narwhal.report.taken import Run, Taken

SLOWEST = "slowest"
"""Asks for the request of each point whose first token came last."""


def stories(runs: Sequence[Run], wanted: Sequence[str]) -> list[RequestStory]:
    """The requests of these ids; `slowest`: one of each point that counts. Raises `ReportError` for an unknown one."""
    found = [story for run in runs for one in run.taken for story in _of_point(run, one, set(wanted))]
    missing = set(wanted) - {SLOWEST} - {story.id for story in found}
    if missing:
        hint = f"ids stand in requests.jsonl of the evidence; or --request {SLOWEST}"
        raise ReportError("request", f"no measurement has a request {sorted(missing)[0]!r}", hint)
    return found


def _of_point(run: Run, one: Taken, wanted: set[str]) -> Iterator[RequestStory]:
    if one.folder is None:
        return
    rows = [BenchRequest.model_validate_json(line) for line in (one.folder / REQUESTS).read_bytes().splitlines()]
    asked = [row for row in rows if row.id in wanted]
    if SLOWEST in wanted and one.counts:
        asked += sorted((row for row in rows if row.ttft_s is not None), key=lambda row: row.ttft_s or 0.0)[-1:]
    if asked:
        told = journal(one)
        yield from (_story(run, one, row, told) for row in asked)


def _story(run: Run, one: Taken, row: BenchRequest, told: Sequence[Row]) -> RequestStory:
    mine = next((each for each in told if each.get("type") == "request" and each.get("id") == row.id), None)
    start_t = one.evidence.router_start_t if one.evidence is not None else None
    parts: list[Part] = []
    incidents: list[Incident] = []
    if mine is not None and start_t is not None:
        parts = list(_parts(mine, mine["arrived_t"] - start_t - row.sent_s))
        incidents = list(_incidents(mine, told, start_t + row.sent_s))
    return RequestStory(
        id=row.id,
        run=run.name,
        point=one.point.point,
        result=row.result,
        met=row.met,
        prompt_tokens=row.prompt_tokens,
        tokens=row.tokens,
        ttft_s=row.ttft_s,
        tpot_s=row.tpot_s,
        gap_s=row.gap_s,
        gap_at_s=None if row.gap_at_s is None else row.gap_at_s - row.sent_s,
        parts=parts,
        incidents=incidents,
        retries=mine["retries"] if mine is not None else 0,
        continued=mine["continued"] if mine is not None else 0,
    )


def _parts(row: Row, way_s: float) -> Iterator[Part]:
    """The stretches; `way_s` is how long the request was on its way, or how far the clocks are apart."""
    way_s = max(way_s, 0.0)
    moments = [
        ("queue", row.get("queued_s"), ""),
        ("prefill", row["prefilled_s"], row["prefill_engine"]),
        ("whole" if row["whole"] else "handoff", row["ttft_s"], row["decode_engine"]),
        ("decode", row["total_s"] if row["ttft_s"] is not None else None, row["decode_engine"]),
    ]
    if row["ttft_s"] is None:
        last = "prefill" if row["prefill_engine"] else "queue"
        moments.append((last, row["total_s"], row["prefill_engine"]))
    begin_s = 0.0
    for name, until_s, engine in moments:
        if until_s is not None:
            yield Part.model_validate({"name": name, "from_s": begin_s, "to_s": way_s + until_s, "engine": engine})
            begin_s = way_s + until_s


def _incidents(row: Row, told: Sequence[Row], sent_t: float) -> Iterator[Incident]:
    """Changes of the engines of a request while it ran."""
    engines = {row["prefill_engine"], row["decode_engine"]}
    end_t = row["arrived_t"] + row["total_s"]
    for each in told:
        if each.get("type") == "engine" and each["engine"] in engines and sent_t <= each["t"] <= end_t:
            what = f"{each['change']} {each['reason']}".strip()
            yield Incident(at_s=each["t"] - sent_t, engine=each["engine"], what=what)
