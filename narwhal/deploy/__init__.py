"""The gates: from a fleet file to a serving fleet over SSH. Render, run Ansible, keep the evidence."""

from narwhal.deploy.approving import approve, check_bundle
from narwhal.deploy.bundle import BundleWish, default_wish, make_bundle
from narwhal.deploy.days import day_of, run_day
from narwhal.deploy.deploying import Choice, Outcome, deploy, dry_run, in_scratch, standings_of, to_run
from narwhal.deploy.difference import differences, text_of
from narwhal.deploy.directory import Changes, changes, read_manifest, write_directory
from narwhal.deploy.discovering import draft_fleet_file, look_at, parse_target
from narwhal.deploy.errors import DeployError
from narwhal.deploy.events import Stop
from narwhal.deploy.evidence import GateEvidence
from narwhal.deploy.gates import GATES, Gate, gate_of
from narwhal.deploy.hostkeys import confirm, fingerprint, scan, unpinned
from narwhal.deploy.lock import locked
from narwhal.deploy.opening import Opened, open_run, run_directory
from narwhal.deploy.reaching import Reach, reaching
from narwhal.deploy.serving import addresses
from narwhal.deploy.standing import Standing
from narwhal.deploy.tunnel import Tunnel, TunnelWish, open_tunnel
from narwhal.deploy.wheelhouse import Source, Target

__all__ = [
    "GATES",
    "BundleWish",
    "Changes",
    "Choice",
    "DeployError",
    "Gate",
    "GateEvidence",
    "Opened",
    "Outcome",
    "Reach",
    "Source",
    "Standing",
    "Stop",
    "Target",
    "Tunnel",
    "TunnelWish",
    "addresses",
    "approve",
    "changes",
    "check_bundle",
    "confirm",
    "day_of",
    "default_wish",
    "deploy",
    "differences",
    "draft_fleet_file",
    "dry_run",
    "fingerprint",
    "gate_of",
    "in_scratch",
    "locked",
    "look_at",
    "make_bundle",
    "open_run",
    "open_tunnel",
    "parse_target",
    "reaching",
    "read_manifest",
    "run_day",
    "run_directory",
    "scan",
    "standings_of",
    "text_of",
    "to_run",
    "unpinned",
    "write_directory",
]
