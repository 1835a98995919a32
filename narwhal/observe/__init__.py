"""Prometheus, Alertmanager and Grafana for a fleet: their files, and running the first two beside a router."""

from narwhal.observe.files import observe_files, write_files
from narwhal.observe.running import Running, UnavailableError, run

__all__ = ["Running", "UnavailableError", "observe_files", "run", "write_files"]
