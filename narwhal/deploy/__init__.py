"""The gates: from a fleet file to a serving fleet over SSH. Render, run Ansible, keep the evidence."""

from narwhal.deploy.approving import approve, check_bundle
from narwhal.deploy.bundle import BundleWish, default_wish, make_bundle
from narwhal.deploy.deploying import Choice, Outcome, deploy, dry_run, standings_of, to_run
from narwhal.deploy.directory import Changes, changes, read_manifest, write_directory
from narwhal.deploy.errors import DeployError
from narwhal.deploy.gates import GATES, Gate, gate_of
from narwhal.deploy.hostkeys import confirm, fingerprint, scan, unpinned
from narwhal.deploy.lock import locked
from narwhal.deploy.opening import Opened, open_run, run_directory
from narwhal.deploy.standing import Standing
from narwhal.deploy.wheelhouse import Source, Target

__all__ = [
    "GATES",
    "BundleWish",
    "Changes",
    "Choice",
    "DeployError",
    "Gate",
    "Opened",
    "Outcome",
    "Source",
    "Standing",
    "Target",
    "approve",
    "changes",
    "check_bundle",
    "confirm",
    "default_wish",
    "deploy",
    "dry_run",
    "fingerprint",
    "gate_of",
    "locked",
    "make_bundle",
    "open_run",
    "read_manifest",
    "run_directory",
    "scan",
    "standings_of",
    "to_run",
    "unpinned",
    "write_directory",
]
