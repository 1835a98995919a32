"""Asking a running router what it does and why, and telling it what the operator wants."""

from narwhal.diagnose.client import AddressError, AdminClient, RefusedError, UnreachableError
from narwhal.diagnose.decisions import explain
from narwhal.diagnose.drains import drain_lines, drain_words, may_stop
from narwhal.diagnose.find import NoRouterError, NoTokenError, find_router
from narwhal.diagnose.health import links_lines, standing_lines
from narwhal.diagnose.incident import incident_lines
from narwhal.diagnose.words import (
    learning_lines,
    lease_is_well,
    only_follows,
    refusal,
    reload_lines,
    status_lines,
)

__all__ = [
    "AddressError",
    "AdminClient",
    "NoRouterError",
    "NoTokenError",
    "RefusedError",
    "UnreachableError",
    "drain_lines",
    "drain_words",
    "explain",
    "incident_lines",
    "learning_lines",
    "find_router",
    "lease_is_well",
    "links_lines",
    "may_stop",
    "only_follows",
    "refusal",
    "reload_lines",
    "standing_lines",
    "status_lines",
]
