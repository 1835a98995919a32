"""One generation request on its way: its sequences' tokens become text, chunks, and at the end an answer."""

import codecs
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from narwhal.engine.simulated.asked import ApiError, Asked
from narwhal.engine.simulated.engine import SimulatedEngine
from narwhal.engine.simulated.replies import (
    DONE,
    STREAM_ERROR,
    Logprob,
    chat_logprobs,
    completion_logprobs,
    event,
    json_encode,
    usage,
    whole_chat,
    whole_completion,
)
from narwhal.engine.simulated.request import Sequence
from narwhal.engine.simulated.sampling import unfinished
from narwhal.engine.simulated.scheduler import Token
from narwhal.engine.simulated.tokenizer import PIECES

_decoder = codecs.getincrementaldecoder("utf-8")


class Reader(Protocol):
    """The client's side of the connection."""

    @property
    def lags(self) -> bool:
        """Whether the client reads more slowly than it is sent to."""

    def begin_stream(self) -> None:
        """Send the head of a stream."""

    def send_event(self, data: bytes) -> None:
        """Send one event, as one chunk."""

    def end_stream(self) -> None:
        """End the stream."""

    def reply(self, status: int, body: bytes) -> None:
        """Send a whole answer."""

    def cut(self) -> None:
        """Break the connection."""


@dataclass(slots=True)
class Choice:
    """The text of one sequence: what was sent, and what waits to be sent."""

    index: int
    sequence: Sequence
    text: str = ""
    decoder: "codecs.IncrementalDecoder" = field(default_factory=lambda: _decoder("replace"))
    """Turns the bytes of tokens into text; a character that is not complete waits in it."""
    sent_chars: int = 0
    unsent: list[int] = field(default_factory=list)
    """Tokens that no chunk has shown yet."""
    logprobs: list[Logprob] = field(default_factory=list)
    """Of the unsent tokens; of all when nothing is streamed."""
    begun: bool = False
    """Whether a chunk was sent."""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    ended: bool = False
    """Whether its last chunk was sent."""

    def __post_init__(self) -> None:
        """What a prompt leaves open is completed by the answer: vLLM then tells the whole prompt again."""
        if unfinished(self.sequence.prompt):
            self.text = self.decoder.decode(b"".join([PIECES[token] for token in self.sequence.prompt]))


class Answer:
    """The sink of a request's sequences."""

    def __init__(self, asked: Asked, request_id: str, engine: SimulatedEngine, reader: Reader) -> None:
        self._asked = asked
        self._engine = engine
        self._reader = reader
        self._id = ("chatcmpl-" if asked.chat else "cmpl-") + request_id
        self._head = {"id": self._id, "created": int(time.time()), "model": engine.settings.model}
        self._choices: dict[str, Choice] = {}
        self._open = 0
        self._token_count = 0
        self._held_chars = max((len(text) for text in asked.stop), default=1) - 1
        """A stop text may begin in so many last characters: they wait for the next token."""
        self._plain_head = self._make_plain_head()

    def start(self) -> None:
        """Submit the sequences."""
        asked = self._asked
        if asked.stream:
            self._reader.begin_stream()
        for prompt in asked.prompts:
            for number in range(asked.n):
                index = len(self._choices)
                sequence = Sequence(
                    id=self._sequence_id(index),
                    prompt=prompt,
                    max_tokens=min(asked.max_tokens, self._engine.settings.max_model_len - len(prompt)),
                    seed=asked.seed + number,
                    cache_salt=asked.cache_salt,
                    natural_end=asked.natural_end,
                    begun_tokens=asked.begun_tokens,
                    stop_tokens=asked.stop_tokens,
                    min_tokens=asked.min_tokens,
                    form=asked.form,
                    keep_kv=asked.keep_kv,
                    source=asked.source if index == 0 else None,
                )
                self._choices[sequence.id] = Choice(index, sequence)
        self._open = len(self._choices)
        for choice in list(self._choices.values()):
            self._engine.submit(choice.sequence, self)

    def token(self, token: Token, now: float) -> None:
        """Add a token; send a chunk unless the reader lags or the chunk is to hold more."""
        choice = self._choices[token.sequence.id]
        choice.unsent.append(token.token)
        choice.text += choice.decoder.decode(PIECES[token.token])
        if self._asked.logprobs is not None:
            choice.logprobs.append((token.token, token.sequence.state))
        choice.finish_reason = token.finish_reason
        if token.finish_reason == "stop" and token.token in self._asked.stop_tokens:
            choice.stop_reason = token.token
        self._find_stop(choice)
        self._token_count += 1
        cut = self._engine.faults.active(now, "cut_stream") if self._asked.stream else ()
        if cut and self._token_count >= cut[0].after_tokens and self._engine.faults.strike(now, "cut_stream"):
            self._reader.cut()
            return
        if choice.finish_reason is not None:
            self._engine.ended(choice.sequence, choice.finish_reason)
            self._open -= 1
        if self._asked.stream:
            if not self._reader.lags:
                self._send(choice)
        elif not self._open:
            self._reader.reply(200, self._whole())

    def resume(self) -> None:
        """The reader has caught up: send what has gathered."""
        if self._asked.stream:
            for choice in self._choices.values():
                if choice.unsent and not self._reader.lags:
                    self._send(choice)

    def failed(self) -> None:
        """A sequence failed: the whole request fails."""
        self.abandon()
        if self._asked.stream:
            self._reader.send_event(STREAM_ERROR)
            self._reader.send_event(DONE)
            self._reader.end_stream()
        else:
            self._reader.reply(500, ApiError(500, "Internal server error").body)

    def abandon(self) -> None:
        """Nobody reads any more: stop the sequences and free their blocks."""
        for choice in self._choices.values():
            self._engine.abort(choice.sequence)

    # --- text

    def _find_stop(self, choice: Choice) -> None:
        if not self._asked.stop or len(choice.sequence.output) < self._asked.min_tokens:
            return
        found = [(choice.text.find(stop, choice.sent_chars), stop) for stop in self._asked.stop]
        found = [(at, stop) for at, stop in found if at >= 0]
        if found:
            at, stop = min(found)
            choice.text = choice.text[:at]
            if choice.finish_reason is None:
                choice.finish_reason = "stop"
                self._engine.stop(choice.sequence)
            choice.finish_reason, choice.stop_reason = "stop", stop

    # --- streams

    def _send(self, choice: Choice) -> None:
        if choice.finish_reason is None and len(choice.unsent) < self._engine.settings.stream_interval:
            return
        if self._asked.chat and not choice.begun:
            self._send_role(choice)
        end = len(choice.text) if choice.finish_reason else max(len(choice.text) - self._held_chars, choice.sent_chars)
        text = choice.text[choice.sent_chars : end]
        if self._plain_head and choice.begun and choice.finish_reason is None:
            self._reader.send_event(b"%s%s%s" % (self._plain_head[0], json_encode(text), self._plain_head[1]))
        else:
            self._reader.send_event(self._chunk(choice, text))
        choice.begun = True
        choice.sent_chars = end
        choice.unsent = []
        choice.logprobs = []
        choice.ended = choice.finish_reason is not None
        if not self._open and all(other.ended for other in self._choices.values()):
            self._end_stream()

    def _send_role(self, choice: Choice) -> None:
        """A chat begins with a chunk that holds no token."""
        delta = {"role": "assistant", "content": ""}
        data: dict[str, Any] = {
            **self._head,
            "object": "chat.completion.chunk",
            "choices": [{"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}],
        }
        if self._asked.return_token_ids:
            data["prompt_token_ids"] = choice.sequence.prompt
        if self._asked.continuous_usage:
            data["usage"] = usage(len(choice.sequence.prompt), 0, self._cached_tokens())
        self._reader.send_event(event(data))

    def _chunk(self, choice: Choice, text: str) -> bytes:
        asked = self._asked
        token_ids = choice.unsent if asked.return_token_ids else None
        shown: dict[str, Any] = {"index": choice.index}
        shown |= {"delta": self._delta(choice, text)} if asked.chat else {"text": text}
        shown["logprobs"] = self._logprobs(choice, choice.sent_chars)
        shown["finish_reason"] = self._finish_reason(choice)
        shown["stop_reason"] = choice.stop_reason
        if not asked.chat:
            first = asked.return_token_ids and not choice.begun
            shown["prompt_token_ids"] = choice.sequence.prompt if first else None
        shown["token_ids"] = token_ids
        kind = "chat.completion.chunk" if asked.chat else "text_completion"
        data: dict[str, Any] = {**self._head, "object": kind, "choices": [shown]}
        if asked.continuous_usage:
            data["usage"] = usage(len(choice.sequence.prompt), len(choice.sequence.output), self._cached_tokens())
        return event(data)

    def _end_stream(self) -> None:
        if self._asked.include_usage:
            kind = "chat.completion.chunk" if self._asked.chat else "text_completion"
            self._reader.send_event(event({**self._head, "object": kind, "choices": [], "usage": self._used()}))
        self._reader.send_event(DONE)
        self._reader.end_stream()

    def _make_plain_head(self) -> tuple[bytes, bytes] | None:
        """What stands before and after the text in most chunks; None when chunks hold more than text."""
        asked = self._asked
        single = len(asked.prompts) * asked.n == 1
        if (
            not single
            or asked.form is not None
            or asked.return_token_ids
            or asked.continuous_usage
            or asked.logprobs is not None
        ):
            return None
        kind = b"chat.completion.chunk" if asked.chat else b"text_completion"
        head = b"data: " + json_encode(self._head)[:-1] + b',"object":"' + kind + b'","choices":[{"index":0,'
        head += b'"delta":{"content":' if asked.chat else b'"text":'
        tail = b"}" if asked.chat else b""
        tail += b',"logprobs":null,"finish_reason":null,"stop_reason":null,'
        tail += b'"token_ids":null}]}\n\n' if asked.chat else b'"prompt_token_ids":null,"token_ids":null}]}\n\n'
        return head, tail

    # --- whole answers

    def _whole(self) -> bytes:
        choices = [self._whole_choice(choice) for choice in self._choices.values()]
        kv = self._kv_transfer_params()
        if not self._asked.chat:
            return whole_completion(self._head, choices, self._used(), kv)
        prompt = self._asked.prompts[0] if self._asked.return_token_ids else None
        return whole_chat(self._head, choices, self._used(), kv, prompt)

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        asked, sequence = self._asked, choice.sequence
        shown: dict[str, Any] = {"index": choice.index}
        if asked.chat:
            shown["message"] = {"role": "assistant", "refusal": None, **self._content(choice)}
        else:
            shown["text"] = choice.text
        shown |= {
            "logprobs": self._logprobs(choice, 0),
            "finish_reason": self._finish_reason(choice),
            "stop_reason": choice.stop_reason,
            "token_ids": sequence.output if asked.return_token_ids else None,
            "routed_experts": None,
        }
        if not asked.chat:
            shown |= {"prompt_logprobs": None, "prompt_token_ids": sequence.prompt if asked.return_token_ids else None}
        return shown

    def _content(self, choice: Choice) -> dict[str, Any]:
        tool = self._asked.form.tool if self._asked.form is not None else None
        if tool is None:
            return {"content": choice.text, "tool_calls": []}
        function = {"name": tool, "arguments": choice.text}
        return {
            "content": None,
            "tool_calls": [{"id": self._call_id(choice), "type": "function", "function": function}],
        }

    def _delta(self, choice: Choice, text: str) -> dict[str, Any]:
        tool = self._asked.form.tool if self._asked.form is not None else None
        if tool is None:
            return {"content": text}
        if choice.begun:
            return {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        call = {"index": 0, "id": self._call_id(choice), "type": "function"}
        return {"tool_calls": [{**call, "function": {"name": tool, "arguments": text}}]}

    def _call_id(self, choice: Choice) -> str:
        return f"chatcmpl-tool-{choice.sequence.id[-8:]}"

    def _finish_reason(self, choice: Choice) -> str | None:
        form = self._asked.form
        calls = choice.finish_reason == "stop" and form is not None and form.tool is not None and not form.named
        return "tool_calls" if calls else choice.finish_reason

    def _logprobs(self, choice: Choice, offset: int) -> Mapping[str, Any] | None:
        top = self._asked.logprobs
        if top is None:
            return None
        if self._asked.chat:
            return chat_logprobs(choice.logprobs, top)
        return completion_logprobs(choice.logprobs, top, offset)

    def _used(self) -> dict[str, Any]:
        prompt_tokens = sum(len(prompt) for prompt in self._asked.prompts)
        output_tokens = sum(len(choice.sequence.output) for choice in self._choices.values())
        return usage(prompt_tokens, output_tokens, self._cached_tokens())

    def _cached_tokens(self) -> int | None:
        """Of the last sequence, as vLLM has it; after a handoff, what the other engine had cached."""
        if not self._engine.settings.prompt_tokens_details:
            return None
        source, sequence = self._asked.source, list(self._choices.values())[-1].sequence
        return (
            source.cached_tokens if source is not None and source.cached_tokens is not None else sequence.cached_tokens
        )

    def _kv_transfer_params(self) -> dict[str, Any] | None:
        """Where another engine finds the KV of the first sequence; of no other, as vLLM has it."""
        sequence = next(iter(self._choices.values())).sequence
        pin = self._engine.scheduler.pins.get(sequence.id)
        if pin is None:
            return None
        params: dict[str, Any] = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [pin.blocks],
            "remote_engine_id": self._engine.engine_id,
            "remote_request_id": sequence.id,
            "remote_host": self._engine.settings.peer_host,
            "remote_port": self._engine.side_channel_port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": len(sequence.prompt),
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
        }
        if len(sequence.output) == 1:
            params["remote_prefill_cached_tokens"] = sequence.cached_tokens
        return params

    def _sequence_id(self, index: int) -> str:
        suffix = self._engine.next_suffix()
        return f"{self._id}-{suffix}" if self._asked.chat and not index else f"{self._id}-{index}-{suffix}"
