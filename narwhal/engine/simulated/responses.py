"""`/v1/responses`: asked for as a chat, and answered in its own words.

A `Translator` stands between an `Answer`, which speaks chat, and the connection. Nothing is kept between requests.
"""

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from narwhal.engine.simulated.answer import Reader
from narwhal.engine.simulated.asked import ApiError, Body
from narwhal.engine.simulated.replies import DONE, STREAM_ERROR, json_encode

_SAME = ("model", "stream", "temperature", "top_p", "seed", "stop", "ignore_eos", "vllm_xargs", "structured_outputs")


def as_chat(body: Body) -> dict[str, Any]:
    """The chat that a response's body amounts to. Raises `ApiError`."""
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items:
        raise ApiError(400, "input must be a text or a list with at least one item", "input")
    chat: dict[str, Any] = {name: body[name] for name in _SAME if name in body}
    chat["messages"] = [_message(item) for item in items]
    if body.get("instructions"):
        chat["messages"].insert(0, {"role": "system", "content": body["instructions"]})
    if body.get("max_output_tokens") is not None:
        chat["max_completion_tokens"] = body["max_output_tokens"]
    if body.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    if body.get("tools"):
        chat["tools"] = [{"type": "function", "function": tool} for tool in body["tools"] if "name" in tool]
        choice = body.get("tool_choice") or "auto"
        chat["tool_choice"] = {"function": choice} if isinstance(choice, dict) else choice
    form = (body.get("text") or {}).get("format") or {}
    if form.get("type") in ("json_object", "json_schema"):
        chat["response_format"] = {"type": form["type"], "json_schema": form}
    return chat


def _message(item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise ApiError(400, "an item of input is an object", "input")
    if item.get("type") == "function_call":
        return {"role": "assistant", "tool_calls": [item]}
    if item.get("type") == "function_call_output":
        return {"role": "tool", "content": item.get("output")}
    return {"role": item.get("role"), "content": item.get("content")}


class Translator:
    """The reader of a chat that writes a response."""

    def __init__(self, connection: Reader, request_id: str, model: str) -> None:
        self._connection = connection
        self._head = {"id": f"resp_{request_id}", "object": "response", "created_at": int(time.time()), "model": model}
        self._number = 0
        self._text = ""
        self._call: dict[str, Any] | None = None
        """The function that is called, as the chat names it."""
        self._begun = False
        self._reason = "stop"
        self._used: Mapping[str, Any] | None = None

    @property
    def lags(self) -> bool:
        """Whether the client reads more slowly than it is sent to."""
        return self._connection.lags

    def begin_stream(self) -> None:
        """Send the head, and say that the response is there."""
        self._connection.begin_stream()
        for kind in ("created", "in_progress"):
            self._send(kind, response=self._response("in_progress", []))

    def send_event(self, data: bytes) -> None:
        """Translate one event of a chat."""
        if data == STREAM_ERROR:  # what vLLM cannot answer any more breaks the connection here
            self._connection.cut()
        elif data != DONE:
            chunk = msgspec.json.decode(data.removeprefix(b"data: "))
            self._used = chunk.get("usage") or self._used
            for choice in chunk["choices"]:
                self._delta(choice)

    def _delta(self, choice: Mapping[str, Any]) -> None:
        self._reason = choice["finish_reason"] or self._reason
        delta = choice["delta"]
        if "role" in delta:
            return
        if "tool_calls" in delta:
            [call] = delta["tool_calls"]
            self._call = self._call or call
            piece, kind = call["function"]["arguments"], "function_call_arguments.delta"
        else:
            piece, kind = delta["content"], "output_text.delta"
        if not self._begun:
            self._begin_item()
        self._text += piece
        place = {"item_id": self._item_id, "output_index": 0}
        where = place if self._call else {**place, "content_index": 0, "logprobs": []}
        self._send(kind, delta=piece, **where)

    def _begin_item(self) -> None:
        self._begun = True
        self._send("output_item.added", output_index=0, item=self._item("in_progress"))
        if self._call is None:
            place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
            self._send("content_part.added", part=_part(""), **place)

    def end_stream(self) -> None:
        """Say that every part is complete, and the response."""
        item, place = self._item("completed"), {"item_id": self._item_id, "output_index": 0}
        if self._call is not None:
            name = self._call["function"]["name"]
            self._send("function_call_arguments.done", name=name, arguments=self._text, **place)
        else:
            self._send("output_text.done", text=self._text, content_index=0, logprobs=[], **place)
            self._send("content_part.done", part=_part(self._text), content_index=0, **place)
        self._send("output_item.done", output_index=0, item=item)
        # vLLM says `completed` of one that was cut, too; its `status` is right
        self._send("completed", response=self._response(self._status, [item]))
        self._connection.end_stream()

    def reply(self, status: int, body: bytes) -> None:
        """Translate a whole answer; an error stays as it is."""
        if status == 200:
            chat = msgspec.json.decode(body)
            [choice] = chat["choices"]
            self._reason, self._used = choice["finish_reason"], chat["usage"]
            calls = choice["message"]["tool_calls"]
            self._call = calls[0] if calls else None
            self._text = calls[0]["function"]["arguments"] if calls else choice["message"]["content"]
            body = json_encode(self._response(self._status, [self._item("completed")]))
        self._connection.reply(status, body)

    def cut(self) -> None:
        """Break the connection."""
        self._connection.cut()

    def _send(self, kind: str, **data: Any) -> None:
        name = f"response.{kind}"
        event = json_encode({"type": name, "sequence_number": self._number, **data})
        self._number += 1
        self._connection.send_event(b"event: %s\ndata: %s\n\n" % (name.encode(), event))

    @property
    def _item_id(self) -> str:
        return f"{'fc' if self._call else 'msg'}_{self._head['id']}"

    @property
    def _status(self) -> str:
        return "incomplete" if self._reason == "length" else "completed"

    def _item(self, status: str) -> dict[str, Any]:
        text = self._text if status == "completed" else ""
        item: dict[str, Any] = {"id": self._item_id, "status": status}
        if self._call is not None:
            name, call_id = self._call["function"]["name"], self._call["id"]
            return item | {"type": "function_call", "name": name, "call_id": call_id, "arguments": text}
        return item | {
            "type": "message",
            "role": "assistant",
            "content": [_part(text)] if status == "completed" else [],
        }

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            **self._head, "status": status, "output": output, "usage": self._usage(), "incomplete_details": details,
            "error": None, "instructions": None, "metadata": None, "parallel_tool_calls": True, "tool_choice": "auto",
            "tools": [], "temperature": 1.0, "top_p": 1.0, "store": False, "background": False,
        }  # fmt: skip

    def _usage(self) -> dict[str, Any] | None:
        if self._used is None:
            return None
        cached = (self._used.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return {
            "input_tokens": self._used["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": self._used["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self._used["total_tokens"],
        }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
