"""Drills: faults that are made on purpose, on a fleet that serves, and what must come of them."""

from narwhal.drills.catalogue import DRILLS, REAL
from narwhal.drills.drill import Drill
from narwhal.drills.run import Done, run_drills
from narwhal.drills.soak import soak

__all__ = ["DRILLS", "REAL", "Done", "Drill", "run_drills", "soak"]
