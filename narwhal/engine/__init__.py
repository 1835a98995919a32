"""One inference engine: its dialect, how it is launched, who it is, and a simulated one."""
