"""What should happen: pure decisions. No clock, no socket, no file, no unseeded random number.

`Control.handle(event)` takes an event (`events.py`) and returns commands (`commands.py`). Two drivers exist: the
router's shell, with real sockets and time, and the simulator, with neither.
"""

from narwhal.control.control import Control
from narwhal.control.curves import Curves
from narwhal.control.state import Settings
from narwhal.control.tenants import PRIORITIES

__all__ = ["PRIORITIES", "Control", "Curves", "Settings"]
