"""Answers with a prescribed form: JSON by `response_format`, and the arguments of a tool call.

A form is a text with one gap. The tokens of the text are forced, as guided decoding forces them; the gap is filled with
words that the KV chooses. An answer that is cut by `max_tokens` ends amid its form, as it does on a real engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from narwhal.engine.simulated.tokenizer import encode

_GAP = "\0"
GAP_TOKENS = 6
"""Words in the gap."""


@dataclass(frozen=True, slots=True)
class Form:
    """What an answer must look like."""

    opening: tuple[int, ...]
    closing: tuple[int, ...] = ()
    gap: bool = False
    """Whether words stand between the two."""
    tool: str | None = None
    """The function that is called with it; None: it is the answer's own text."""
    named: bool = False
    """The client named the function."""

    def token(self, place: int) -> int | None:
        """The forced token at a place of the answer, -1 at its end; None in the gap."""
        if place < len(self.opening):
            return self.opening[place]
        place -= len(self.opening)
        if self.gap:
            if place < GAP_TOKENS:
                return None
            place -= GAP_TOKENS
        return self.closing[place] if place < len(self.closing) else -1


def form_of(body: Mapping[str, Any]) -> Form | None:
    """The form that a chat's or completion's body asks for; None: free text."""
    tool = _tool(body)
    if tool is not None:
        function, named = tool
        schema = function.get("parameters") or {"type": "object"}
        return _form(_instance(schema), tool=str(function.get("name")), named=named)
    asked = body.get("response_format")
    asked = asked if isinstance(asked, dict) else {}
    kind = asked.get("type")
    if kind == "json_object":
        return _form({"answer": _GAP})
    if kind == "json_schema":
        return _form(_instance((asked.get("json_schema") or {}).get("schema") or {}))
    guided = body.get("structured_outputs")
    if isinstance(guided, dict) and isinstance(guided.get("json"), dict):
        return _form(_instance(guided["json"]))
    return None


def _tool(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool] | None:
    """The function to call, and whether the client named it. A model left free calls one, and answers its result."""
    tools, choice, messages = body.get("tools"), body.get("tool_choice") or "auto", body.get("messages")
    if not isinstance(tools, list) or not tools or choice == "none":
        return None
    functions = [
        tool["function"] for tool in tools if isinstance(tool, dict) and isinstance(tool.get("function"), dict)
    ]
    if isinstance(choice, dict):
        name = (choice.get("function") or {}).get("name")
        return next(((function, True) for function in functions if function.get("name") == name), None)
    last = messages[-1] if isinstance(messages, list) and messages else None
    answered = isinstance(last, dict) and last.get("role") == "tool"
    return (functions[0], False) if functions and not (answered and choice == "auto") else None


def _form(document: Any, *, tool: str | None = None, named: bool = False) -> Form:
    text = msgspec.json.encode(document).decode().replace('"\\u0000"', _GAP, 1).replace('"\\u0000"', '"text"')
    opening, gap, closing = text.partition(_GAP)
    if not gap:
        return Form(tuple(encode(text)), tool=tool, named=named)
    return Form(tuple(encode(f'{opening}"')), tuple(encode(f'"{closing}')), gap=True, tool=tool, named=named)


def _instance(schema: Any) -> Any:
    """The simplest document that a JSON Schema of plain keywords allows."""
    if not isinstance(schema, dict):
        return _GAP
    for key in ("const", "enum", "anyOf", "oneOf"):
        if key in schema:
            value = schema[key]
            return value if key == "const" else value[0] if key == "enum" else _instance(value[0])
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object" or "properties" in schema:
        return {name: _instance(part) for name, part in (schema.get("properties") or {}).items()}
    if kind == "array":
        return [_instance(schema.get("items"))] * max(int(schema.get("minItems", 1)), 1)
    plain = {"integer": int(schema.get("minimum", 1)), "number": 1.5, "boolean": True, "null": None}
    return plain.get(str(kind), _GAP)
