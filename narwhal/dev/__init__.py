"""A fleet on this one machine: an instance that stays (`narwhal dev`), and one that comes and goes (`demo`)."""

from narwhal.dev.errors import DevError
from narwhal.dev.instance import Instance, default_directory

__all__ = ["DevError", "Instance", "default_directory"]
