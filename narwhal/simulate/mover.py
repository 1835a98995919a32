"""Role moves from outside control."""

from typing import TYPE_CHECKING

from narwhal.simulate.request import Request

if TYPE_CHECKING:
    from narwhal.simulate.simulation import Simulation


class Mover:
    """Role moves that come from outside control: what `arrow` and `clairvoyant` are, beside its own policies."""

    def arriving(self, sim: "Simulation", request: Request) -> None:
        """Called before control hears of a request."""

    def prefilled(self, sim: "Simulation", request: Request) -> None:
        """Called before control hears that leg 1 is done."""

    def tick(self, sim: "Simulation") -> None:
        """Called after each tick of control."""
