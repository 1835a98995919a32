"""The live page: its files, and the events that keep it up to date.

`narwhal top` reads the same events.
"""

from narwhal.router.live.files import PATHS, serve_file
from narwhal.router.live.parts import AnyPart
from narwhal.router.live.stream import TICK_S, Live

__all__ = ["PATHS", "TICK_S", "AnyPart", "Live", "serve_file"]
