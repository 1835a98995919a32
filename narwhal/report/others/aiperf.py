"""AIPerf: `profile_export_aiperf.json`, and the requests of `profile_export.jsonl` beside it.

Its inter token latency is the time from the first token to the end of the answer over the tokens after the first: TPOT
here. Its inter chunk latencies are what gaps are here. Checked with 0.13.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from narwhal.report.others.errors import ResultError
from narwhal.report.others.told import REFUSALS, Told, load_name, told_point
from narwhal.report.taken import Taken

Json = dict[str, Any]
RECORDS = "profile_export.jsonl"
_PHASE = "profiling"


def is_aiperf(document: Any) -> bool:
    """Whether a document is AIPerf's summary."""
    return isinstance(document, dict) and "aiperf_version" in document


def aiperf_points(document: Json, path: Path, where: str) -> list[Taken]:
    """The one point of a run. Raises `ResultError` without the records of its requests."""
    try:
        lines = path.with_name(RECORDS).read_bytes().splitlines()
    except OSError as error:
        raise ResultError(f"{RECORDS} is not beside it: {error.strerror or error}") from None
    requests = list(_requests(map(json.loads, lines)))
    phases = [phase for phase in document["input_config"].get("phases", []) if phase.get("name") == _PHASE]
    load = phases[0] if phases else {}
    rate, kind = load.get("rate"), load.get("type", "load")
    name = load_name(kind, rate if rate is not None else load.get("concurrency"))
    return [told_point(requests, "aiperf", name, rate, where, document.get("start_time") or "")]


def _requests(records: Iterator[Json]) -> Iterator[Told]:
    for record in records:
        about = record["metadata"]
        if about.get("benchmark_phase", _PHASE) != _PHASE:
            continue
        sent_s, metrics = about["request_start_ns"] / 1e9, record.get("metrics") or {}
        if record.get("error") or about.get("was_cancelled"):
            yield _unserved(record, sent_s)
            continue
        chunks = _value(metrics, "inter_chunk_latency")
        yield Told(
            sent_s=sent_s,
            result="served",
            prompt_tokens=int(_value(metrics, "input_sequence_length") or 0),
            tokens=int(_value(metrics, "output_sequence_length") or 0),
            ttft_s=_seconds(metrics, "time_to_first_token"),
            tpot_s=_seconds(metrics, "inter_token_latency"),
            gap_s=max(chunks) / 1e3 if chunks else None,
            lag_s=(about["request_start_ns"] - about["credit_issued_ns"]) / 1e9
            if "credit_issued_ns" in about
            else None,
        )


def _unserved(record: Json, sent_s: float) -> Told:
    code = (record.get("error") or {}).get("code")
    if record["metadata"].get("was_cancelled"):
        return Told(sent_s, "cancelled")
    return Told(sent_s, "refused" if code in REFUSALS else "failed")


def _value(metrics: Json, name: str) -> Any:
    found = metrics.get(name)
    return found["value"] if found is not None else None


def _seconds(metrics: Json, name: str) -> float | None:
    value = _value(metrics, name)
    return None if value is None else value / 1e3
