"""Whether a running fleet can serve: every engine, and KV over every directed pair, with the evidence on disk."""

from narwhal.preflight.canary import Json, block_tokens, canary_body, local_answer, streamed_text, text_of
from narwhal.preflight.document import NAMES, CheckResult, Name, Preflight
from narwhal.preflight.pairs import Handovers
from narwhal.preflight.run import Wish, preflight, save_preflight

__all__ = [
    "NAMES",
    "CheckResult",
    "Handovers",
    "Json",
    "Name",
    "Preflight",
    "Wish",
    "block_tokens",
    "canary_body",
    "local_answer",
    "preflight",
    "save_preflight",
    "streamed_text",
    "text_of",
]
