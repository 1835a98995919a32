"""Two routers of one fleet: which of them leads, what the other follows, and how it takes over.

Both run the same program. Whoever holds the lease serves; the other reads its follow stream, looks at the engines, and
answers clients with 503. What must have one writer, the role map, is written in the lease's store.
"""

from narwhal.router.standby.feed import Feed
from narwhal.router.standby.leadership import STANDBY, Leadership, has_lease
from narwhal.router.standby.line import FollowLine, pieces, state_of
from narwhal.router.standby.shown import LeaseCollector

__all__ = ["STANDBY", "Feed", "FollowLine", "LeaseCollector", "Leadership", "has_lease", "pieces", "state_of"]
