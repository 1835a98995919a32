"""The gates: from a fleet file to a serving fleet over SSH. Render, run Ansible, keep the evidence."""

from narwhal.deploy.directory import Changes, changes, read_manifest, write_directory
from narwhal.deploy.errors import DeployError
from narwhal.deploy.opening import Opened, open_run, run_directory

__all__ = [
    "Changes",
    "DeployError",
    "Opened",
    "changes",
    "open_run",
    "read_manifest",
    "run_directory",
    "write_directory",
]
