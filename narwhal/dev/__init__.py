"""A fleet on this one machine: an instance that stays (`narwhal dev`), and one that comes and goes (`demo`)."""

from narwhal.dev.errors import DevError
from narwhal.dev.instance import Instance, default_directory
from narwhal.dev.interrupts import cleaned_up, ends_like_ctrl_c
from narwhal.dev.ports import free_run
from narwhal.dev.workplace import running_demo

__all__ = ["DevError", "Instance", "cleaned_up", "default_directory", "ends_like_ctrl_c", "free_run", "running_demo"]
