"""Confirming host keys: shown once, typed or given by the operator, kept with the run."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from narwhal.cli.app import progress
from narwhal.cli.output import CommandError, Problem

if TYPE_CHECKING:
    from narwhal.fleet.model import Ssh

AcceptOption = Annotated[
    list[str] | None,
    typer.Option("--accept-host-key", metavar="SHA256:…", help="Fingerprint of a host key to trust; may be repeated."),
]


def confirmed_key(name: str, ssh: "Ssh", accepted: Sequence[str]) -> str:
    """The key of a host, once its fingerprint was given beforehand or confirmed here. Nothing is taken silently."""
    from narwhal.deploy import fingerprint, scan

    key = scan(name, ssh)
    shown = fingerprint(key)
    if shown in accepted:
        return key
    place = f"{name} ({ssh.address} port {ssh.port})"
    if not sys.stdin.isatty():
        text = f"{place} shows {key.split()[0]} {shown}, which nobody confirmed"
        hint = f"compare it on the host (ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub), then --accept-host-key {shown}"
        raise CommandError(Problem("host_key", text, hint=hint))
    progress().say(
        f"{place} shows {key.split()[0]}\n  {shown}\ncompare it on the host: ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub"
    )
    if not typer.confirm("Is it the same?", err=True):
        raise CommandError(Problem("host_key", f"the key of {name} was not confirmed", hint="pin the right one"))
    return key
