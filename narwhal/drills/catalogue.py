"""All drills, in the order of the faults table."""

from collections.abc import Sequence

from narwhal.drills import engines, garbage, links, pressure, routers
from narwhal.drills.drill import Drill

DRILLS: Sequence[Drill] = (
    engines.decode_killed,
    engines.engine_killed,
    engines.engine_hangs,
    engines.engine_restarts,
    routers.router_killed,
    routers.router_host_lost,
    routers.router_stopped,
    routers.router_thawed,
    routers.routers_parted,
    routers.store_down,
    links.link_dead,
    links.kv_corrupt,
    pressure.overload,
    garbage.garbage,
    pressure.lifecycle_refused,
    pressure.disk_full,
)

REAL: Sequence[Drill] = (engines.engine_hangs, engines.engine_restarts, engines.decode_killed)
"""Those that can be played on real engines, in an order in which each leaves the next a fleet that serves."""
