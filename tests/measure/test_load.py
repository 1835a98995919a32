import asyncio
import socket
from typing import Any

import pytest
import uvloop

from narwhal.measure import Load, Outcome, Planned, Target
from tests.measure.servers import DONE, END, Handler, chunk, event, head, plain, send, serving, token, usage


def play(handler: Handler, schedule: list[Planned], **options: Any) -> list[Outcome]:
    async def run() -> list[Outcome]:
        async with serving(handler) as port:
            return await Load(Target("127.0.0.1", port, "m"), schedule, **options).run()

    return uvloop.run(asyncio.wait_for(run(), 60))


def one(handler: Handler, **options: Any) -> Outcome:
    (outcome,) = play(handler, [Planned(0.0, 5, 3, "test")], **options)
    return outcome


def test_a_served_stream_has_its_times_and_the_tokens_of_its_usage() -> None:
    async def handler(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await send(writer, head(), chunk(event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})))
        await asyncio.sleep(0.2)
        await send(writer, chunk(token("a")))
        await asyncio.sleep(0.2)
        await send(writer, chunk(token("b") + token("c")), chunk(usage(9)), chunk(DONE), END)

    outcome = one(handler)
    assert (outcome.result, outcome.status, outcome.tokens, outcome.error) == ("served", 200, 9, "")
    assert outcome.ttft_s is not None
    assert outcome.ttft_s >= 0.19  # the role chunk is no token; timers may come a hair early
    assert outcome.tpot_s is not None
    assert outcome.tpot_s >= 0.19 / 8  # eight gaps share the 0.2 s; timers may come a hair early


def test_an_event_split_over_packets_is_one_token() -> None:
    async def handler(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        whole = token("abc") + token("def") + DONE
        await send(writer, head())
        for place in range(0, len(whole), 7):
            await send(writer, chunk(whole[place : place + 7]))
            await asyncio.sleep(0)
        await send(writer, END)

    outcome = one(handler)
    assert (outcome.result, outcome.tokens) == ("served", 2)


def test_text_that_looks_like_the_protocol_is_text() -> None:
    async def handler(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        odd = token('data: {"error": "completion_tokens": 99 [DONE] "text":"x"')
        await send(writer, head(), chunk(odd), chunk(token("b")), chunk(DONE), END)

    outcome = one(handler)
    assert (outcome.result, outcome.tokens) == ("served", 2)


def test_the_request_asks_for_what_was_planned() -> None:
    seen: list[dict[str, Any]] = []

    async def handler(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        seen.append(body)
        await send(writer, head(), chunk(token("a") + DONE), END)

    play(handler, [Planned(0.0, 7, 3, "test"), Planned(0.0, 7, 3, "test")])
    assert [len(body["prompt"]) for body in seen] == [7, 7]
    assert seen[0]["prompt"][:2] != seen[1]["prompt"][:2]
    assert seen[0]["max_tokens"] == 3
    assert seen[0]["stream"] is True


@pytest.mark.parametrize(
    ("status", "result"),
    [("429 Too Many Requests", "refused"), ("503 Busy", "refused"), ("500 Error", "failed"), ("400 No", "failed")],
)
def test_a_status_before_the_start_is_a_refusal_or_a_failure(status: str, result: str) -> None:
    async def handler(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await plain(writer, status, b'{"error":{"message":"not now","type":"x"}}')

    outcome = one(handler)
    assert (outcome.result, outcome.status, outcome.error) == (result, int(status[:3]), "not now")


@pytest.mark.parametrize(("tokens", "result"), [(0, "failed"), (1, "cut")])
def test_an_error_event_fails_or_cuts_a_stream(tokens: int, result: str) -> None:
    async def handler(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        error = event({"error": {"message": "engine lost", "code": 502}})
        await send(writer, head(), *[chunk(token("a"))] * tokens, chunk(error), chunk(DONE), END)

    outcome = one(handler)
    assert (outcome.result, outcome.error) == (result, "engine lost")


@pytest.mark.parametrize(("tokens", "result"), [(0, "failed"), (2, "cut")])
def test_a_connection_that_ends_early_fails_or_cuts_a_stream(tokens: int, result: str) -> None:
    async def handler(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await send(writer, head(), *[chunk(token("a"))] * tokens)

    outcome = one(handler)
    assert outcome.result == result
    assert "connection" in outcome.error


def test_a_stream_that_ends_without_done_is_cut() -> None:
    async def handler(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await send(writer, head(), chunk(token("a")), END)

    outcome = one(handler)
    assert (outcome.result, outcome.error) == ("cut", "the stream ended without [DONE]")


def test_what_is_not_http_is_a_failure() -> None:
    async def handler(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await send(writer, b"hello\r\n\r\n")

    outcome = one(handler)
    assert outcome.result == "failed"
    assert "not HTTP" in outcome.error


def test_nobody_listening_is_a_failure_with_its_reason() -> None:
    async def run() -> list[Outcome]:
        async with serving(lambda body, writer: send(writer, b"")) as port:
            pass
        return await Load(Target("127.0.0.1", port, "m"), [Planned(0.0, 1, 1, "test")]).run()

    (outcome,) = uvloop.run(run())
    assert outcome.result == "failed"
    assert "cannot connect" in outcome.error


def test_an_answer_that_never_ends_is_given_up() -> None:
    async def handler(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await send(writer, head(), chunk(token("a")))
        await asyncio.sleep(600)

    outcome = one(handler, timeout_s=0.5)
    assert outcome.result == "cut"
    assert "0.5 s" in outcome.error


def test_a_stuck_server_does_not_delay_later_sends() -> None:
    """Open loop: every request goes out in time although not one is answered."""
    arrived: list[int] = []

    async def run() -> list[Outcome]:
        everybody = asyncio.Event()

        async def handler(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
            arrived.append(body["max_tokens"])
            if len(arrived) == 30:
                everybody.set()
            await everybody.wait()
            await send(writer, head(), chunk(token("a") + DONE), END)

        schedule = [Planned(0.01 * number, 4, number + 1, "test") for number in range(30)]
        async with serving(handler) as port:
            return await Load(Target("127.0.0.1", port, "m"), schedule).run()

    outcomes = uvloop.run(asyncio.wait_for(run(), 60))
    assert [outcome.result for outcome in outcomes] == ["served"] * 30  # answered only once all had been sent
    assert all(outcome.lag_s >= 0 for outcome in outcomes)


def test_a_name_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def handler(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await send(writer, head(), chunk(token("a") + DONE), END)

    looked_up: list[object] = []

    async def run() -> list[Outcome]:
        async with serving(handler) as port:
            real = socket.getaddrinfo

            def lookup(host: Any, *more: Any, **options: Any) -> Any:
                looked_up.append(host)
                return real("127.0.0.1" if host == "router.example.org" else host, *more, **options)

            monkeypatch.setattr(socket, "getaddrinfo", lookup)
            schedule = [Planned(0.0, 4, 1, "test") for _ in range(5)]
            return await Load(Target("router.example.org", port, "m"), schedule).run()

    outcomes = uvloop.run(asyncio.wait_for(run(), 60))
    assert [outcome.result for outcome in outcomes] == ["served"] * 5
    assert looked_up.count("router.example.org") == 1


def test_cancelling_closes_what_runs_and_sends_nothing_more() -> None:
    left = asyncio.Event()

    async def run() -> list[Outcome]:
        async def handler(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
            await send(writer, head(), chunk(token("a")))
            first.set()
            try:
                while not writer.transport.is_closing():
                    await send(writer, chunk(token("a")))
                    await asyncio.sleep(0.01)
            except ConnectionError:
                pass
            left.set()

        first = asyncio.Event()
        async with serving(handler) as port:
            load = Load(Target("127.0.0.1", port, "m"), [Planned(0.0, 4, 9, "a"), Planned(600.0, 4, 9, "b")])
            task = asyncio.ensure_future(load.run())
            await first.wait()
            assert load.in_flight == 1
            load.cancel()
            outcomes = await task
            await left.wait()
            assert load.in_flight == 0
            return outcomes

    (outcome,) = uvloop.run(asyncio.wait_for(run(), 60))
    assert outcome.result == "cancelled"
