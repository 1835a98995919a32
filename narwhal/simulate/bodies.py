"""Traffic classes: what a request of `code`, `conv` or `reas` looks like.

Shipped classes are quantile tables of public traces: Azure Public Dataset, LLM inference trace 2023 (code and
conversation), CC-BY 4.0. Output lengths are tabled for each quarter of the prompt lengths, since the two depend on
each other. `reas` stands for reasoning: prompts of `conv` with five times the output, at most 4,000 tokens.
"""

import random
from bisect import bisect_right
from collections.abc import Callable, Mapping
from pathlib import Path

from narwhal.simulate.traces import read_trace

Body = tuple[int, int]
"""Prompt and output tokens of a request."""
Draw = Callable[[random.Random], Body]

REASONING_FACTOR = 5
REASONING_CAP_TOKENS = 4000
TRACE_FILES = {"code": "azure_code_2023.csv", "conv": "azure_conv_2023.csv"}
ALIASES = {"conversation": "conv", "reasoning": "reas"}

# fmt: off
_SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85,
 0.9, 0.95, 0.975, 0.99, 0.995, 0.999, 1.0)
"""Shares of requests that the columns of the tables stand for."""

_TABLES: Mapping[str, tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]] = {
    "code": (
        (3, 75, 147, 232, 386, 578, 770, 938, 1075, 1261, 1469, 1690, 1909, 2164, 2433, 2745, 3192, 3919, 5186, 7302,
         7435, 7436, 7436, 7437, 7437),
        (
            (6, 6, 7, 8, 9, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 24, 30, 41, 56, 91, 131, 248, 315, 784, 1899),
            (6, 6, 7, 7, 8, 9, 9, 10, 11, 12, 13, 14, 16, 18, 19, 22, 28, 36, 52, 84, 146, 217, 294, 638, 841),
            (6, 6, 7, 7, 8, 9, 9, 10, 11, 12, 13, 14, 15, 17, 20, 24, 30, 40, 55, 88, 142, 253, 382, 831, 940),
            (6, 6, 7, 7, 8, 9, 9, 10, 11, 12, 13, 14, 15, 17, 20, 24, 30, 40, 58, 102, 149, 295, 445, 848, 928),
        ),
    ),
    "conv": (
        (2, 181, 207, 372, 387, 396, 403, 414, 703, 984, 1020, 1045, 1071, 1097, 1130, 1189, 1315, 1876, 2734, 4083,
         4092, 4142, 4831, 6212, 14050),
        (
            (7, 18, 50, 60, 67, 73, 79, 84, 88, 93, 97, 104, 113, 127, 144, 161, 167, 181, 202, 217, 217, 254,
            290, 1000,
             1000),
            (10, 72, 82, 86, 89, 92, 95, 97, 100, 104, 109, 116, 126, 139, 169, 386, 395, 403, 415, 437, 477,
            569, 604,
             659, 921),
            (28, 121, 375, 384, 389, 394, 396, 396, 398, 401, 406, 411, 414, 417, 423, 429, 434, 449, 497, 559,
            610, 666,
             937, 992, 1000),
            (15, 35, 41, 46, 50, 55, 61, 68, 74, 82, 89, 98, 108, 121, 136, 150, 169, 200, 345, 408, 429, 518,
            595, 755,
             954),
        ),
    ),
}
# fmt: on


class TrafficError(ValueError):
    """A traffic class or mix that cannot be used; the message says what there is."""


def classes(folder: Path | None = None) -> dict[str, Draw]:
    """How to draw a request of each class: from the tables, or from Azure's files when `folder` has them.

    Raises `TrafficError` when the folder lacks one, `TraceError` when a file is not a trace.
    """
    draws: dict[str, Draw] = {}
    for name, file in TRACE_FILES.items():
        if folder is None:
            draws[name] = _table_draw(name)
            continue
        path = folder / file
        if not path.is_file():
            raise TrafficError(f"{path}: not there; the folder must hold {', '.join(TRACE_FILES.values())}")
        trace = read_trace(path)
        draws[name] = _trace_draw(list(zip(trace.prompts, trace.outputs, strict=True)))
    draws["reas"] = _reasoning(draws["conv"])
    return draws


def resolve(name: str, known: Mapping[str, Draw]) -> str:
    """The class that `name` means. Raises `TrafficError`."""
    name = ALIASES.get(name, name)
    if name not in known:
        raise TrafficError(f"no traffic class is called {name!r}; there are {', '.join(sorted(known))}")
    return name


def _interpolate(table: tuple[int, ...], share: float) -> int:
    place = min(bisect_right(_SHARES, share), len(_SHARES) - 1)
    low, high = _SHARES[place - 1], _SHARES[place]
    part = (share - low) / (high - low)
    return max(1, round(table[place - 1] + part * (table[place] - table[place - 1])))


def _table_draw(name: str) -> Draw:
    prompts, outputs = _TABLES[name]

    def draw(rng: random.Random) -> Body:
        share = rng.random()
        quarter = min(int(share * len(outputs)), len(outputs) - 1)
        return _interpolate(prompts, share), _interpolate(outputs[quarter], rng.random())

    return draw


def _trace_draw(bodies: list[Body]) -> Draw:
    return lambda rng: bodies[int(rng.random() * len(bodies))]


def _reasoning(conversation: Draw) -> Draw:
    def draw(rng: random.Random) -> Body:
        prompt, output = conversation(rng)
        return prompt, min(output * REASONING_FACTOR, REASONING_CAP_TOKENS)

    return draw
