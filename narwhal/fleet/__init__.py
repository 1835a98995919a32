"""What the operator declares: load, check, expand and migrate the fleet file; find profiles."""

from narwhal.fleet.expand import expand
from narwhal.fleet.expanded import EngineSpec, Expanded, RouterSpec
from narwhal.fleet.finding import Finding, FleetError, SourceError
from narwhal.fleet.model import Fleet
from narwhal.fleet.opening import open_fleet
from narwhal.fleet.profile import Profile
from narwhal.fleet.profiles import ProfileError, load_profile, profile_names

__all__ = [
    "EngineSpec",
    "Expanded",
    "Finding",
    "Fleet",
    "FleetError",
    "Profile",
    "ProfileError",
    "RouterSpec",
    "SourceError",
    "expand",
    "load_profile",
    "open_fleet",
    "profile_names",
]
