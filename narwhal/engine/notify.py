"""Telling systemd: that a unit of `Type=notify` is ready, and that it still turns. Light to import."""

import contextlib
import os
import socket
from collections.abc import Mapping


def notify(message: str) -> None:
    """Tell systemd, when it asked to be told (`Type=notify`)."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, contextlib.suppress(OSError):
        sender.connect("\0" + path[1:] if path.startswith("@") else path)
        sender.send(message.encode())


def watchdog_s(environ: Mapping[str, str]) -> float | None:
    """How often to say `WATCHDOG=1`, in seconds: twice in each `WatchdogSec=`; None when nobody waits for it."""
    interval = environ.get("WATCHDOG_USEC", "")
    return int(interval) / 2e6 if interval.isdigit() and int(interval) > 0 else None
