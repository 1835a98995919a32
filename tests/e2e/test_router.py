"""Clients as people use them, through a router and simulated engines: every answer is the single engine's own."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.routers import Fleet, fleet_of
from tests.router.harness import eventually, post, read_all, read_until

pytestmark = pytest.mark.e2e
PROMPT = "What did the narwhal see under the ice?"
MESSAGES: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_of(tmp_path_factory.mktemp("fleet"), 4, speed=4.0) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def routed(fleet: Fleet) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{fleet.router.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def alone(fleet: Fleet) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{fleet.expanded.engines[-1].url}/v1", api_key="none", max_retries=0)


def completion(client: openai.OpenAI, **more: Any) -> tuple[str, Any, Any]:
    answer = client.completions.create(model="m", prompt=PROMPT, max_tokens=24, temperature=0, **more)
    if not more.get("stream"):
        return answer.choices[0].text, answer.choices[0].finish_reason, answer.usage
    chunks = list(answer)
    text = "".join(c.choices[0].text for c in chunks if c.choices)
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    return text, reasons[-1], chunks[-1].usage


def chat(client: openai.OpenAI, **more: Any) -> tuple[str, Any, Any]:
    answer = client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=24, temperature=0, **more)
    if not more.get("stream"):
        return answer.choices[0].message.content, answer.choices[0].finish_reason, answer.usage
    chunks = list(answer)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    return text, reasons[-1], chunks[-1].usage


STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("more", [{}, STREAMED], ids=["buffered", "streamed"])
@pytest.mark.parametrize("ask", [completion, chat])
def test_the_openai_client_gets_the_single_engine_s_answer(
    fleet: Fleet, routed: openai.OpenAI, alone: openai.OpenAI, ask: Any, more: dict[str, Any]
) -> None:
    before = len(fleet.router.rows("request"))
    text, reason, usage = ask(routed, **more)
    expected = ask(alone, **more)
    assert text
    assert (text, reason) == expected[:2]
    assert usage.completion_tokens == expected[2].completion_tokens == 24
    assert usage.prompt_tokens == expected[2].prompt_tokens
    eventually(lambda: len(fleet.router.rows("request")) > before, "the journal's row")
    row = fleet.router.rows("request")[-1]
    roles = {engine["id"]: engine["role"] for engine in fleet.router.state()["engines"]}
    assert (roles[row["prefill_engine"]], roles[row["decode_engine"]]) == ("prefill", "decode")
    assert (row["completion_tokens"], row["prompt_tokens"]) == (24, usage.prompt_tokens)


def test_the_openai_client_reads_the_router_s_errors(routed: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        routed.completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError, match="only the router may say it"):
        routed.completions.create(model="m", prompt="x", extra_body={"kv_transfer_params": {"do_remote_prefill": True}})
    with pytest.raises(openai.BadRequestError, match="maximum context length"):  # the engine's own words
        routed.completions.create(model="m", prompt=[5] * 9000, max_tokens=1)
    assert [model.id for model in routed.models.list()] == ["m"]
    assert routed.models.retrieve("m").id == "m"


@pytest.mark.parametrize("more", [{"n": 2, "temperature": 1.0, "seed": 7}, {"prompt": ["one", "two"]}])
def test_what_cannot_be_split_goes_to_one_engine(fleet: Fleet, more: dict[str, Any]) -> None:
    body = {"model": "m", "prompt": PROMPT, "max_tokens": 5, **more}
    status, _, data = fleet.router.send("POST", "/v1/completions", body)
    assert status == 200, data
    assert len(json.loads(data)["choices"]) == 2
    eventually(lambda: fleet.router.rows("request")[-1]["whole"], "its row")
    assert fleet.router.rows("request")[-1]["prefill_engine"] == ""


@pytest.mark.parametrize("version", ["--http1.0", "--http1.1"])
def test_curl(fleet: Fleet, version: str) -> None:
    body = json.dumps({"model": "m", "prompt": PROMPT, "max_tokens": 8, "stream": True, "temperature": 0})
    argv = ["curl", "-sS", "-N", version, "-d", body, "-H", "Content-Type: application/json"]
    done = subprocess.run([*argv, f"{fleet.router.url}/v1/completions"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("data: [DONE]\n\n")
    frames = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("data: {")]
    assert "".join(frame["choices"][0]["text"] for frame in frames)


def test_a_client_that_leaves_frees_its_engines(fleet: Fleet) -> None:
    sock = fleet.router.connect()
    sock.sendall(post({"model": "m", "prompt": PROMPT, "max_tokens": 4000, "stream": True, "ignore_eos": True}))
    read_until(sock, b"data: ")
    assert any(engine["residents"] for engine in fleet.router.state()["engines"])
    sock.close()
    eventually(lambda: sum(e["residents"] for e in fleet.router.state()["engines"]) == 0, "an empty fleet")
    eventually(lambda: fleet.router.rows("request")[-1]["outcome"] == "cancelled", "its row")
    decode = fleet.router.rows("request")[-1]["decode_engine"]
    url = fleet.expanded.engine(decode).url

    def idle() -> bool:
        done = subprocess.run(["curl", "-sS", f"{url}/metrics"], capture_output=True, text=True, timeout=60)
        return any(
            line.startswith("vllm:num_requests_running") and line.endswith(" 0.0") for line in done.stdout.splitlines()
        )

    eventually(idle, "an idle engine")


def test_a_decode_engine_dies_in_mid_stream(tmp_path: Path) -> None:
    with fleet_of(tmp_path, 4, speed=4.0) as fleet:
        sock = fleet.router.connect()
        body = {"model": "m", "prompt": PROMPT, "max_tokens": 4000, "stream": True, "ignore_eos": True}
        sock.sendall(post(body, extra="X-Narwhal-Continue: off\r\n"))
        answer = read_until(sock, b"data: ")
        serving = next(e["id"] for e in fleet.router.state()["engines"] if e["residents"])
        fleet.engines[fleet.expanded.engine(serving).index].kill()
        answer += read_all(sock)
        assert answer.count(b'data: {"error"') == 1
        assert b"[DONE]" not in answer
        assert answer.endswith(b"\r\n0\r\n\r\n")
        eventually(lambda: bool(fleet.router.rows("request")), "its row")
        row = fleet.router.rows("request")[-1]
        assert (row["outcome"], row["code"]) == ("cut", "upstream")
        eventually(
            lambda: any(e["id"] == serving and e["state"] == "ejected" for e in fleet.router.state()["engines"]),
            "its ejection",
        )
        status, _, data = fleet.router.send("POST", "/v1/completions", {"model": "m", "prompt": "x", "max_tokens": 3})
        assert status == 200, data


def test_an_operator_swaps_roles_and_requests_follow(tmp_path: Path) -> None:
    with fleet_of(tmp_path, 2, speed=4.0) as fleet:
        send = fleet.router.send
        assert send("POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 3})[0] == 200
        swap = {"a": "local/0", "b": "local/1"}
        status, _, data = send("POST", "/narwhal/swap", swap, admin=True)
        assert status == 200, data
        assert json.loads(data)["decision"]["outcome"] == "moved"
        assert send("POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 3})[0] == 200
        eventually(lambda: len(fleet.router.rows("request")) == 2, "two rows")
        legs = [(row["prefill_engine"], row["decode_engine"]) for row in fleet.router.rows("request")]
        assert legs == [("local/0", "local/1"), ("local/1", "local/0")]


def test_a_stop_lets_streams_finish_and_takes_nothing_new(tmp_path: Path) -> None:
    with fleet_of(tmp_path, 2, speed=1.0) as fleet:
        router = fleet.router
        sock, idle = router.connect(), router.connect()
        sock.sendall(post({"model": "m", "prompt": PROMPT, "max_tokens": 40, "stream": True, "ignore_eos": True}))
        answer = read_until(sock, b"data: ")
        router.process.send_signal(signal.SIGTERM)
        assert idle.recv(1) == b""
        with pytest.raises(OSError):
            router.connect()
        answer += read_all(sock)
        assert answer.count(b"data: ") == 41
        assert b"data: [DONE]" in answer
        assert router.process.wait(30) == 0
        assert router.rows("request")[-1]["outcome"] == "served"


def test_a_second_signal_ends_streams_with_one_error(tmp_path: Path) -> None:
    with fleet_of(tmp_path, 2, speed=1.0, serving="admission: open, shutdown_s: 600") as fleet:
        router = fleet.router
        sock = router.connect()
        sock.sendall(post({"model": "m", "prompt": PROMPT, "max_tokens": 4000, "stream": True, "ignore_eos": True}))
        answer = read_until(sock, b"data: ")
        router.process.send_signal(signal.SIGTERM)
        eventually(lambda: router.send("GET", "/ready", admin=True)[0] == 503, "unreadiness")
        assert router.send("GET", "/health", admin=True)[0] == 200
        router.process.send_signal(signal.SIGTERM)
        answer += read_all(sock)
        started = time.monotonic()
        assert router.process.wait(60) == 0
        assert time.monotonic() - started < 60
        assert answer.count(b'data: {"error"') == 1
        assert b"[DONE]" not in answer
        row = router.rows("request")[-1]
        assert (row["outcome"], row["code"]) == ("cut", "stopping")
