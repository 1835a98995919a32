"""Whether a running fleet can serve: every engine, and KV over every directed pair, with the evidence on disk."""

from narwhal.preflight.canary import (
    ROUTE,
    Answer,
    Json,
    LegError,
    block_tokens,
    canary_body,
    hand_over,
    local_answer,
    moved,
    prompt_of,
    streamed_text,
    text_of,
)
from narwhal.preflight.document import NAMES, CheckResult, Name, Preflight
from narwhal.preflight.identity import Attested, ask_sidecar
from narwhal.preflight.pairs import Handovers
from narwhal.preflight.run import Wish, preflight, save_preflight

__all__ = [
    "NAMES",
    "ROUTE",
    "Answer",
    "Attested",
    "CheckResult",
    "Handovers",
    "Json",
    "LegError",
    "Name",
    "Preflight",
    "Wish",
    "ask_sidecar",
    "block_tokens",
    "canary_body",
    "hand_over",
    "local_answer",
    "moved",
    "preflight",
    "prompt_of",
    "save_preflight",
    "streamed_text",
    "text_of",
]
