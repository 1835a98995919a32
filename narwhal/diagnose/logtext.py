"""What of a log may go into a bundle: engines write what others wrote for them, prompts among it."""

import re
from collections.abc import Iterable, Iterator

_DATED = r"(?:\d{4}-\d\d-\d\dT\S+ )?(?:[\w@.-]+\[\d+\]: )?"
"""What journald puts before a line."""
_OWN = re.compile(rf"{_DATED}(?:\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ )?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) ")
"""A line that Narwhal wrote: it holds no text of a user."""
_LEVEL = re.compile(
    r"(?P<head>(?:\([^()\s]+(?: pid=\d+)?\) )?(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ )?"
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b:?(?: \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)?(?: \[[\w./]+:\d+\])?)"
    r"\s*(?P<message>.*)"
)
"""A line of vLLM or uvicorn: process, level, time and place in the source, then what it says."""
_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line \d+, in [\w<>]+')
_RAISED = re.compile(r"(?P<kind>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning))(?:: .*)?")
_KNOWN = re.compile(
    r"(?:(?:Started|Finished) server process \[\d+\]|Waiting for application (?:startup|shutdown)\.|Shutting down"
    r"|Application (?:startup|shutdown) complete\.|Avg prompt throughput: [\d.,%:/ ]*(?:(?:tokens|s|Avg|generation"
    r"|throughput|Running|Waiting|reqs|GPU|KV|cache|usage|Prefix|hit|rate|External|prefix)\b[\d.,%:/ ]*)*"
    r"|(?:GPU )?KV cache size: [\d,]+ tokens|Maximum concurrency for [\d,]+ tokens per request: [\d.]+x"
    r"|CUDA out of memory\. Tried to allocate [\d.]+ [KMG]iB\.?)"
)
"""Messages of engines that are known to hold numbers only."""
_HEAD = "Traceback (most recent call last):"


def told_by_us(lines: Iterable[str]) -> Iterator[str]:
    """Lines of a router's log: its own whole; of errors the frames and the kind, not what they say."""
    return (kept for line in lines if (kept := line if _OWN.match(line) else _bones(line)))


def told_by_engine(lines: Iterable[str]) -> Iterator[str]:
    """Lines of an engine's log: when, how grave and where in the source; the message where it is a known one."""
    return (kept for line in lines if (kept := _of_engine(line)))


def _of_engine(line: str) -> str:
    dated = re.match(_DATED, line)
    begin = dated.end() if dated else 0
    found = _LEVEL.match(line, begin)
    if found is None:
        return _bones(line)
    message = found["message"].strip()
    if not _KNOWN.fullmatch(message):
        bones = _bones(message)
        message = bones.strip() or f"‹message, {len(message)} characters›"
    return f"{line[:begin]}{found['head']} {message}"


def _bones(line: str) -> str:
    """Of a line of a traceback the frame, or the kind of what was raised; of any other line nothing."""
    dated = re.match(_DATED, line)
    begin = dated.end() if dated else 0
    body = line[begin:]
    if body.strip() == _HEAD or _FRAME.fullmatch(body):
        return line
    raised = _RAISED.fullmatch(body.strip())
    return f"{line[:begin]}{raised['kind']}" if raised else ""
