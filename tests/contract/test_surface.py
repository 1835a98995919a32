import contextlib
import http.client
import json
import re
import socket

import pytest

from tests.contract.engines import PATIENCE_S, Engine, FreshPrompt, Streaming
from tests.contract.kinds import MOST_REQUESTS

pytestmark = pytest.mark.e2e
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


def test_small_pages(engine: Engine) -> None:
    for path in ("/health", "/ping"):
        reply = engine.send(path)
        assert (reply.status, reply.body) == (200, b"")
    assert engine.send("/version").json() == {"version": "0.32.0"}
    assert engine.send("/load").json() == {"server_load": 0}
    model = engine.send("/v1/models").json()["data"][0]
    assert (model["id"], model["object"], model["max_model_len"]) == ("contract", "model", engine.kind.capacity_tokens)


def test_tokenize_and_back(engine: Engine) -> None:
    reply = engine.send("/tokenize", {"model": "contract", "prompt": "the ünïcode sea"}).json()
    assert reply["count"] == len(reply["tokens"])
    assert engine.send("/detokenize", {"tokens": reply["tokens"]}).json() == {"prompt": "the ünïcode sea"}
    chat = engine.send("/tokenize", {"messages": HELLO}).json()
    used = engine.send(CHAT, {"messages": HELLO, "max_tokens": 1}).json()["usage"]
    assert chat["count"] == used["prompt_tokens"]


ERRORS = [
    ({"model": "nope"}, 404, "NotFoundError", "model", "The model `nope` does not exist. Valid aliases: contract"),
    ({"prompt": []}, 400, "BadRequestError", None, "You must pass at least one prompt"),
    ({"prompt": [999999]}, 400, "BadRequestError", None, "Token id 999999 is out of vocabulary"),
    ({"prompt": [300] * 2049}, 400, "BadRequestError", "input_tokens", "This model's maximum context length is 2048"),
    ({"prompt": [300] * 2048}, 400, "BadRequestError", "max_tokens", "max_tokens must be at least 1, got 0."),
    (
        {"stream_options": {"include_usage": True}},
        400,
        "BadRequestError",
        "stream_options",
        "Stream options can only be defined when",
    ),
    ({"n": 2}, 400, "BadRequestError", None, "n must be 1 when using greedy sampling, got 2."),
    ({"min_tokens": 9}, 400, "BadRequestError", None, "min_tokens must be less than or equal to max_tokens=8"),
    ({"temperature": -1}, 400, "BadRequestError", "temperature", "temperature must be non-negative"),
    ({"max_tokens": 0}, 400, "BadRequestError", "max_tokens", "max_tokens must be at least 1, got 0."),
]


@pytest.mark.parametrize(("change", "status", "sort", "param", "message"), ERRORS)
def test_errors_have_vllm_s_form(
    engine: Engine, change: dict[str, object], status: int, sort: str, param: str | None, message: str
) -> None:
    body = {"model": "contract", "prompt": [300, 301], "max_tokens": 8, "temperature": 0, **change}
    reply = engine.send("/v1/completions", body)
    error = reply.json()["error"]
    assert (reply.status, error["code"], error["type"], error["param"]) == (status, status, sort, param)
    assert error["message"].startswith(message)


def test_what_is_not_a_request(engine: Engine) -> None:
    bad = engine.send("/v1/completions", b"{")
    assert bad.status == 400
    assert bad.json()["error"]["type"] == "Bad Request"
    assert bad.json()["error"]["param"] == "body.1"
    unknown = engine.send("/nowhere")
    assert (unknown.status, unknown.json()) == (404, {"detail": "Not Found"})
    wrong = engine.send("/v1/completions")
    assert (wrong.status, wrong.json()) == (405, {"detail": "Method Not Allowed"})


def test_no_model_is_fine_and_unknown_fields_are_ignored(engine: Engine) -> None:
    assert engine.send("/v1/completions", {"prompt": "the sea", "surprise": 1}).status == 200


def test_an_answer_is_cut_where_the_context_ends(engine: Engine, fresh_prompt: FreshPrompt) -> None:
    (choice,) = engine.complete(fresh_prompt(engine.kind.capacity_tokens - 6), 100, return_token_ids=True).json()[
        "choices"
    ]
    assert (len(choice["token_ids"]), choice["finish_reason"]) == (6, "length")


def test_a_whole_completion(engine: Engine) -> None:
    reply = engine.complete("the sea", 4).json()
    assert set(reply) >= {"id", "object", "created", "model", "choices", "usage", "kv_transfer_params", "metrics"}
    assert (reply["object"], reply["kv_transfer_params"]) == ("text_completion", None)
    assert reply["id"].startswith("cmpl-")
    assert reply["choices"][0]["finish_reason"] == "length"
    used = reply["usage"]
    assert (used["completion_tokens"], used["total_tokens"]) == (4, used["prompt_tokens"] + 4)


def test_the_same_prompt_has_the_same_answer_everywhere_and_another_seed_another(
    engine_pair: tuple[Engine, Engine], fresh_prompt: FreshPrompt
) -> None:
    prompt = fresh_prompt(50)
    one, other = (engine.tokens(prompt, 12) for engine in engine_pair)
    assert one == other
    seeded = [engine_pair[0].tokens(prompt, 12, temperature=1, seed=seed) for seed in (5, 5, 6)]
    assert seeded[0] == seeded[1] != seeded[2]


def test_the_answer_s_id_is_the_request_s(engine: Engine) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=PATIENCE_S)
    body = json.dumps({"prompt": "the sea"})
    connection.request("POST", "/v1/completions", body, {"content-type": "application/json", "X-Request-Id": "r-1"})
    response = connection.getresponse()
    assert json.loads(response.read())["id"] == "cmpl-r-1"
    assert response.getheader("x-request-id") is None
    connection.close()


def test_a_streamed_completion_is_the_whole_one_in_parts(engine: Engine, fresh_prompt: FreshPrompt) -> None:
    prompt = fresh_prompt(30)
    whole = engine.complete(prompt, 10, return_token_ids=True).json()["choices"][0]
    events = engine.complete(prompt, 10, stream=True, return_token_ids=True).events
    choices = [event["choices"][0] for event in events]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert [token for choice in choices for token in choice["token_ids"]] == whole["token_ids"]
    assert choices[0]["prompt_token_ids"] == prompt
    assert all(choice["prompt_token_ids"] is None for choice in choices[1:])
    assert [choice["finish_reason"] for choice in choices][-2:] == [None, "length"]
    assert choices[-1]["text"] != ""


def test_a_streamed_chat_begins_with_a_role_that_is_no_token(engine: Engine) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"messages": HELLO, "max_tokens": 5, "stream": True, "stream_options": options, "return_token_ids": True}
    first, *rest = engine.send(CHAT, body).events
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["usage"]["completion_tokens"] == 0
    assert first["prompt_token_ids"]
    assert first["id"].startswith("chatcmpl-")
    *parts, last = rest
    assert [part["usage"]["completion_tokens"] for part in parts][-1] == 5
    assert parts[-1]["choices"][0]["finish_reason"] == "length"
    assert parts[-1]["choices"][0]["delta"]["content"]
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 5)


def test_usage_comes_last_and_only_when_asked_for(engine: Engine) -> None:
    plain = engine.complete("the sea", 3, stream=True).events
    assert all("usage" not in event for event in plain)
    asked = engine.complete("the sea", 3, stream=True, stream_options={"include_usage": True}).events
    assert [event.get("usage") is not None for event in asked] == [False] * (len(asked) - 1) + [True]


@pytest.mark.parametrize("kind", ["simulated"], indirect=True)  # random weights hardly ever say that they are done
def test_a_chat_without_a_limit_ends_by_itself(engine: Engine) -> None:
    choice = engine.send(CHAT, {"messages": HELLO}).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"]


def test_a_stop_text_ends_the_answer_before_it(engine: Engine, fresh_prompt: FreshPrompt) -> None:
    prompt = fresh_prompt(30)
    text = engine.complete(prompt, 40, ignore_eos=True).json()["choices"][0]["text"]
    found = re.compile("[a-z]{3}").search(text, 8)
    assert found is not None, text
    before = text[: text.index(found[0])]
    choice = engine.complete(prompt, 40, ignore_eos=True, stop=[found[0]]).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", found[0])
    events = engine.complete(prompt, 40, ignore_eos=True, stop=found[0], stream=True).events
    assert choice["text"] == "".join(event["choices"][0]["text"] for event in events) == before
    engine.eventually(lambda: engine.metric("vllm:num_requests_running") == 0)


def test_several_choices_and_prompts_come_with_their_index(engine: Engine) -> None:
    prompts = ["the sea", "the land"]
    body = {"prompt": prompts, "n": 2, "temperature": 1, "seed": 3, "max_tokens": 6, "ignore_eos": True}
    choices = engine.send("/v1/completions", body).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert len({choice["text"] for choice in choices}) == 4
    events = engine.send("/v1/completions", {**body, "stream": True}).events
    parts = ["".join(e["choices"][0]["text"] for e in events if e["choices"][0]["index"] == i) for i in range(4)]
    assert parts == [choice["text"] for choice in choices]


def test_log_probabilities_have_the_usual_forms(engine: Engine) -> None:
    shown = engine.complete("the sea", 3, logprobs=2).json()["choices"][0]["logprobs"]
    assert [len(shown[key]) for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [3] * 4
    assert all(value <= 0 for value in shown["token_logprobs"])
    body = {"messages": HELLO, "max_tokens": 3, "logprobs": True, "top_logprobs": 4}
    content = engine.send(CHAT, body).json()["choices"][0]["logprobs"]["content"]
    assert [len(item["top_logprobs"]) for item in content] == [4, 4, 4]


def test_a_reader_that_lags_gets_fewer_and_larger_chunks(engine: Engine, fresh_prompt: FreshPrompt) -> None:
    """Alternatives of each token make more than the system's buffers hold."""
    before = engine.metric("vllm:generation_tokens_total")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(PATIENCE_S)
        client.connect(("127.0.0.1", engine.port))
        logprobs = engine.kind.most_logprobs
        ask = {"prompt": fresh_prompt(20), "max_tokens": 2000, "logprobs": logprobs, "ignore_eos": True}
        send(client, **ask, stream=True, return_token_ids=True)
        engine.eventually(lambda: engine.metric("vllm:generation_tokens_total") - before == 2000)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        data = b""
        while b"data: [DONE]" not in data[-64:]:
            data += client.recv(65536)
    chunks = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: {")]
    counts = [len(chunk["choices"][0]["token_ids"]) for chunk in chunks]
    assert sum(counts) == 2000
    assert len(counts) < 2000


def test_every_event_is_a_chunk_of_its_own(engine: Engine, fresh_prompt: FreshPrompt) -> None:
    with socket.create_connection(("127.0.0.1", engine.port), PATIENCE_S) as client:
        send(client, prompt=fresh_prompt(20), max_tokens=5, stream=True)
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            data += client.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    assert b"content-type: text/event-stream; charset=utf-8" in head
    pieces = []
    while body:
        size, _, body = body.partition(b"\r\n")
        pieces.append(body[: int(size, 16)])
        body = body[int(size, 16) + 2 :]
    assert len(pieces) == 7  # five tokens, [DONE], and the end
    assert all(piece.startswith(b"data: ") and piece.endswith(b"\n\n") for piece in pieces[:-1])


def test_an_idle_connection_is_used_again_and_closed_at_last(engine: Engine) -> None:
    with socket.create_connection(("127.0.0.1", engine.port), PATIENCE_S) as client:
        for _ in range(2):
            client.sendall(b"GET /health HTTP/1.1\r\nhost: engine\r\n\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
        assert client.recv(65536) == b""


def test_a_full_engine_refuses(victim: Engine, fresh_prompt: FreshPrompt) -> None:
    before = victim.metric("vllm:admission_rejections_total")
    with contextlib.ExitStack() as stack:
        for _ in range(MOST_REQUESTS):
            stack.enter_context(Streaming(victim, fresh_prompt(20), 1500, ignore_eos=True))
        reply = victim.complete(fresh_prompt(20))
    assert reply.status == 503
    assert reply.json()["error"]["type"] == "Service Unavailable"
    assert "retry-after" not in reply.headers
    victim.eventually(lambda: victim.metric("vllm:admission_rejections_total") - before == 1)


def test_metrics_have_vllm_s_names(engine: Engine) -> None:
    page = engine.send("/metrics").body.decode()
    for name in (
        'vllm:num_requests_running{engine="0",model_name="contract"}',
        'vllm:num_requests_waiting_by_reason{engine="0",model_name="contract",reason="deferred"}',
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="contract"}',
        "vllm:inter_token_latency_seconds_sum",
        "vllm:e2e_request_latency_seconds_count",
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="contract"}',
        "vllm:num_preemptions_total",
        "vllm:prefix_cache_hits_total",
        "vllm:nixl_num_kv_expired_reqs_total",
        "vllm:cache_config_info{",
        f'block_size="{engine.kind.block_tokens}"',
        'engine="0",',
        "process_start_time_seconds ",
    ):
        assert name in page, name


def send(client: socket.socket, **body: object) -> None:
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: engine\r\ncontent-type: application/json\r\n"
    client.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
