"""The state machine: events in, commands out."""

from narwhal.control.commands import AnyCommand
from narwhal.control.events import AnyEvent
from narwhal.control.state import Pool, Settings


class Control:
    """Decides for one pool of engines. Deterministic: the same events give the same commands."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pool = Pool()

    def handle(self, event: AnyEvent) -> list[AnyCommand]:
        """Take one event, return what to do, in order. Never raises for an event about something unknown."""
        raise NotImplementedError
