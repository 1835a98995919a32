"""The gates: from a fleet file to a serving fleet over SSH. Render, run Ansible, keep the evidence."""

from narwhal.deploy.approving import approve, check_bundle
from narwhal.deploy.bundle import BundleWish, make_bundle
from narwhal.deploy.directory import Changes, changes, read_manifest, write_directory
from narwhal.deploy.errors import DeployError
from narwhal.deploy.opening import Opened, open_run, run_directory
from narwhal.deploy.wheelhouse import Source, Target

__all__ = [
    "BundleWish",
    "Changes",
    "DeployError",
    "Opened",
    "Source",
    "Target",
    "approve",
    "changes",
    "check_bundle",
    "make_bundle",
    "open_run",
    "read_manifest",
    "run_directory",
    "write_directory",
]
