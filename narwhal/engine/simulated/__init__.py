"""The simulated engine: a process that speaks vLLM's dialect, keeps vLLM's rules, and computes nothing.

It takes as long as a profile says, holds KV in blocks, hands KV to its peers over real sockets, and fails on demand.
Its answers are made of common words and depend on the KV alone: the same prompt has the same answer on every engine,
and KV that was lost, reused or corrupted has another.
"""

from narwhal.engine.simulated.server import serve
from narwhal.engine.simulated.settings import Settings, SettingsError

__all__ = ["Settings", "SettingsError", "serve"]
