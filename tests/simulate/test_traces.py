import json
from pathlib import Path

import pytest

from narwhal.simulate.traces import TraceError, at_rate, compressed, first_seconds, read_trace
from narwhal.simulate.workload import Workload


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
7.5,GPT-4,1087,0,1087,API log
"""
SERVEGEN = "request_id,timestamp,input_length,output_length\n0,10.0,100,20\n1,10.25,200,30\n"
MOONCAKE = "".join(
    json.dumps({"timestamp": t, "input_length": n, "output_length": 50, "hash_ids": [1]}) + "\n"
    for t, n in ((0, 6758), (3000, 7322))
)
JOURNAL = "".join(
    json.dumps(row) + "\n"
    for row in (
        {"type": "request", "arrived_t": 100.0, "prompt_tokens": 30, "completion_tokens": 4, "tenant": "a"},
        {"type": "decision", "decision": {"t": 100.5}},
        {"type": "request", "arrived_t": 101.0, "prompt_tokens": 31, "completion_tokens": 5, "tenant": "b"},
    )
)


@pytest.mark.parametrize(
    ("name", "text", "times", "prompts", "outputs"),
    [
        ("azure.csv", AZURE, [0.0, 0.052], [4808, 3180], [10, 8]),
        ("burst.csv", BURST, [0.0, 2.5], [472, 1087], [18, 1]),
        ("servegen.csv", SERVEGEN, [0.0, 0.25], [100, 200], [20, 30]),
        ("mooncake.jsonl", MOONCAKE, [0.0, 3.0], [6758, 7322], [50, 50]),
        ("journal.jsonl", JOURNAL, [0.0, 1.0], [30, 31], [4, 5]),
    ],
)
def test_each_kind_of_trace_is_read(
    tmp_path: Path, name: str, text: str, times: list[float], prompts: list[int], outputs: list[int]
) -> None:
    trace = read_trace(write(tmp_path, name, text))
    assert trace.times_s == pytest.approx(times, abs=1e-6)
    assert (trace.prompts, trace.outputs) == (prompts, outputs)


def test_requests_are_sorted_by_time(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, "s.csv", "timestamp,input_length,output_length\n9,1,1\n4,2,2\n"))
    assert (trace.times_s, trace.prompts) == ([0.0, 5.0], [2, 1])


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.csv", AZURE + "2023-11-16 18:17:05.0,many,8\n", 4),
        ("b.csv", AZURE + "yesterday,3,8\n", 4),
        ("c.csv", AZURE + "2023-11-16 18:17:05.0,3\n", 4),
        ("d.csv", AZURE + "2023-11-16 18:17:05.0,-3,8\n", 4),
        ("e.csv", "when,what\n1,2\n", 1),
        ("f.jsonl", MOONCAKE + '{"timestamp": 1, "input_length": 3}\n', 3),
        ("g.jsonl", MOONCAKE + "{broken\n", 3),
        ("h.jsonl", MOONCAKE + '{"other": 1}\n', 3),
        ("i.csv", "", 1),
    ],
)
def test_a_bad_line_is_named_with_its_file_and_number(tmp_path: Path, name: str, text: str, line: int) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert str(error.value).startswith(f"{path}:{line}: ")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere\.csv"):
        read_trace(tmp_path / "nowhere.csv")


TRACE = Workload("t", [float(n) for n in range(1000)], [10] * 1000, [2] * 1000, ["x"] * 1000, 1000.0)


@pytest.mark.parametrize("rate", [0.25, 1.0, 3.5])
def test_a_trace_is_brought_to_a_rate_over_the_same_time(rate: float) -> None:
    scaled = at_rate(TRACE, rate, 1)
    assert scaled.rate_rps == pytest.approx(rate, rel=0.1)
    assert scaled.seconds == TRACE.seconds
    assert scaled.times_s == sorted(scaled.times_s)
    assert at_rate(TRACE, rate, 1) == scaled


def test_compression_and_cutting() -> None:
    assert compressed(TRACE, 4).rate_rps == pytest.approx(4 * TRACE.rate_rps)
    assert len(first_seconds(TRACE, 100.0)) == 100
