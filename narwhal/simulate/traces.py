"""Reading traces: Azure 2023, BurstGPT and ServeGen CSV, Mooncake and AIPerf JSON Lines, and our own journal.

The kind is told from the content. Rows without an output (failed requests of BurstGPT) count as one token.
"""

import csv
import json
import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from narwhal.simulate.workload import Workload

Row = tuple[float, int, int, str]
"""Seconds, prompt tokens, output tokens, class."""

JITTER_S = 5.0
"""Copies of a request that a higher rate adds arrive within this many seconds of it."""


class TraceError(ValueError):
    """A trace that cannot be read; the message begins with `file:line:`."""


def read_trace(path: Path) -> Workload:
    """The trace in `path`, times counted from its first request. Raises `TraceError`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot read it: {why_unreadable(error)}") from error
    first = next((line for line in lines if line.strip()), "")
    reader = _read_jsonl if first.lstrip().startswith("{") else _read_csv
    rows = sorted(reader(path, lines), key=lambda row: row[0])
    if not rows:
        raise TraceError(f"{path}:1: no request in it")
    start = rows[0][0]
    return Workload(
        path.stem,
        [row[0] - start for row in rows],
        [row[1] for row in rows],
        [row[2] for row in rows],
        [row[3] for row in rows],
        max(rows[-1][0] - start, 1e-3),
    )


def why_unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Why a text file could not be read, without its path and the number of the error."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8 text"


def _stamp(text: str) -> float:
    """Seconds of a date, or of a number of seconds."""
    try:
        return float(text)
    except ValueError:
        # Azure writes seven digits of a second, one more than datetime knows
        head, _, fraction = text.partition(".")
        return datetime.fromisoformat(head).timestamp() + (float("0." + fraction) if fraction else 0.0)


_COLUMNS: tuple[tuple[str, str, str, str | None], ...] = (
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens", None),  # Azure 2023
    ("Timestamp", "Request tokens", "Response tokens", "Model"),  # BurstGPT
    ("timestamp", "input_length", "output_length", None),  # ServeGen
    ("timestamp", "input_tokens", "output_tokens", None),  # ServeGen, by its other names
)


def _read_csv(path: Path, lines: list[str]) -> Iterator[Row]:
    reader = csv.DictReader(lines)
    names = {name.strip(): name for name in reader.fieldnames or ()}
    columns = next((kind for kind in _COLUMNS if all(name in names for name in kind[:3])), None)
    if columns is None:
        known = "; ".join(", ".join(kind[:3]) for kind in _COLUMNS)
        raise TraceError(f"{path}:1: no known columns; a CSV trace has one of: {known}")
    time_name, prompt_name, output_name, class_name = columns
    for record in reader:
        try:
            yield _row(
                _stamp(record[names[time_name]]),
                record[names[prompt_name]],
                record[names[output_name]],
                (record[names[class_name]] if class_name in names else "") if class_name else "",
            )
        except (TypeError, ValueError) as error:
            raise TraceError(f"{path}:{reader.line_num}: not a request: {error}") from error


def _row(t: float, prompt: Any, output: Any, kind: str) -> Row:
    prompt_tokens, output_tokens = int(float(prompt)), int(float(output))
    if prompt_tokens < 0 or output_tokens < 0 or t != t:
        raise ValueError(f"{prompt_tokens} prompt and {output_tokens} output tokens at {t}")
    return t, max(prompt_tokens, 1), max(output_tokens, 1), kind or "trace"


def _mooncake(record: Mapping[str, Any]) -> Row | None:
    if "input_length" not in record:
        return None
    return _row(float(record["timestamp"]) / 1000.0, record["input_length"], record["output_length"], "")


def _servegen(record: Mapping[str, Any]) -> Row | None:
    if "input_tokens" not in record:
        return None
    return _row(float(record["timestamp"]), record["input_tokens"], record["output_tokens"], "")


def _journal(record: Mapping[str, Any]) -> Row | None:
    """A row of our journal: one request."""
    if record.get("type") != "request":
        return None
    t, prompt, output = record["arrived_t"], record["prompt_tokens"], record["completion_tokens"]
    return _row(float(t), prompt, output, str(record.get("tenant", "")))


def _aiperf(record: Mapping[str, Any]) -> Row | None:
    """A row of AIPerf's per-request records (`profile_export.jsonl`)."""
    metadata, metrics = record.get("metadata"), record.get("metrics")
    if not isinstance(metadata, dict) or not isinstance(metrics, dict) or "request_start_ns" not in metadata:
        return None
    prompt, output = (metrics.get(name, {}).get("value", 0) for name in ("input_sequence_length", _AIPERF_OUTPUT))
    return _row(float(metadata["request_start_ns"]) / 1e9, prompt, output, "")


_AIPERF_OUTPUT = "output_sequence_length"
_JSON_KINDS: tuple[Callable[[Mapping[str, Any]], Row | None], ...] = (_mooncake, _servegen, _journal, _aiperf)


def _read_jsonl(path: Path, lines: list[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("not an object")
            if record.get("type", "request") != "request":
                continue  # other rows of our journal: decisions, changes, starts
            row = next((row for kind in _JSON_KINDS if (row := kind(record)) is not None), None)
            if row is None:
                raise ValueError(
                    "neither a Mooncake row (timestamp, input_length, output_length), nor one of AIPerf's records, "
                    "nor a journal row"
                )
            yield row
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{path}:{number}: not a request: {error!s}") from error


def at_rate(trace: Workload, rate_rps: float, seed: int) -> Workload:
    """The trace with another mean rate and the same course over time.

    Each request is kept, left out or copied by chance, so that their mean number is `rate_rps` over the trace's own;
    copies arrive within `JITTER_S` of it.
    """
    factor = rate_rps / trace.rate_rps
    rng = random.Random(seed)
    rows: list[tuple[float, int]] = []
    for index, t in enumerate(trace.times_s):
        copies = int(factor) + (rng.random() < factor % 1.0)
        for copy in range(copies):
            shifted = t if copy == 0 else t + rng.uniform(-JITTER_S, JITTER_S)
            rows.append((min(max(shifted, 0.0), trace.seconds), index))
    rows.sort()
    order = [index for _, index in rows]
    return Workload(
        trace.name,
        [t for t, _ in rows],
        [trace.prompts[index] for index in order],
        [trace.outputs[index] for index in order],
        [trace.classes[index] for index in order],
        trace.seconds,
        trace.turns_s,
    )


def compressed(trace: Workload, factor: float) -> Workload:
    """The trace run `factor` times as fast."""
    return Workload(
        trace.name,
        [t / factor for t in trace.times_s],
        trace.prompts,
        trace.outputs,
        trace.classes,
        trace.seconds / factor,
        tuple(t / factor for t in trace.turns_s),
    )


def first_seconds(trace: Workload, seconds: float) -> Workload:
    """The beginning of the trace."""
    end = bisect_left(trace.times_s, seconds)
    return Workload(
        trace.name,
        trace.times_s[:end],
        trace.prompts[:end],
        trace.outputs[:end],
        trace.classes[:end],
        min(seconds, trace.seconds),
        tuple(t for t in trace.turns_s if t < seconds),
    )
