"""One inference engine: its dialect, how it is launched, and a simulated one."""

from narwhal.engine.launch import simulated_argv

__all__ = ["simulated_argv"]
