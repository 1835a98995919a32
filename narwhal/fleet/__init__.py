"""What the operator declares: load, check, expand and migrate the fleet file; find profiles."""

from narwhal.fleet.check import Checked, check_file, check_section, check_source, check_text, fleet_files
from narwhal.fleet.expand import expand
from narwhal.fleet.expanded import EngineSpec, Expanded, RouterSpec
from narwhal.fleet.finding import Finding, FleetError, SourceError
from narwhal.fleet.migrate import Migrated, migrate_source
from narwhal.fleet.model import Fleet
from narwhal.fleet.opening import open_fleet
from narwhal.fleet.profile import Profile
from narwhal.fleet.profiles import ProfileError, load_profile, profile_names
from narwhal.fleet.source import Source, read_source

__all__ = [
    "Checked",
    "Migrated",
    "Source",
    "check_file",
    "check_section",
    "check_source",
    "check_text",
    "fleet_files",
    "migrate_source",
    "read_source",
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
