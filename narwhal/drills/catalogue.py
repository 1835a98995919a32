"""All drills, in the order of the faults table."""

from collections.abc import Sequence

from narwhal.drills import engines, links
from narwhal.drills.drill import Drill

DRILLS: Sequence[Drill] = (
    engines.decode_killed,
    engines.engine_killed,
    engines.engine_hangs,
    engines.engine_restarts,
    links.link_dead,
    links.kv_corrupt,
)
