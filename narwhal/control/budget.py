"""A budget for second tries, fed by successes: a fleet that fails is not asked twice for everything."""

from narwhal.fleet.model import Budget as Limits


class Budget:
    """A bucket of tries. It is full at the start, so that the loss of an engine is made good at once."""

    __slots__ = ("spent",)

    def __init__(self) -> None:
        self.spent = 0.0
        """Tries that no success has paid for yet."""

    def earn(self, limits: Limits) -> None:
        """A request was served."""
        if self.spent:
            self.spent = max(self.spent - limits.share, 0.0)

    def left(self, limits: Limits) -> float:
        """Tries that may be made now."""
        return max(limits.reserve - self.spent, 0.0)

    def spend(self, limits: Limits) -> bool:
        """Make a try, if one is left."""
        if self.left(limits) < 1.0:
            return False
        self.spent += 1.0
        return True
