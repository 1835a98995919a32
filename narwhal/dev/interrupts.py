"""Ending in order: signals that become `KeyboardInterrupt`, and cleaning up that no further signal disturbs."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ends_like_ctrl_c() -> Iterator[None]:
    """SIGTERM and a closed terminal raise `KeyboardInterrupt` here, as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def cleaned_up() -> Iterator[ExitStack]:
    """A stack that is closed whatever happens, undisturbed by further signals."""
    stack = ExitStack()
    try:
        yield stack
    finally:
        with undisturbed():
            stack.close()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C, SIGTERM and SIGHUP: cleaning up has its own deadlines."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
