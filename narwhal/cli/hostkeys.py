"""Confirming host keys: shown once, typed or given by the operator, kept with the run."""

import sys
from collections.abc import Mapping, Sequence
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
_READ_THERE = "ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub"


def confirmed_keys(hosts: "Mapping[str, Ssh]", accepted: Sequence[str]) -> dict[str, str]:
    """The keys of hosts, by name, once each fingerprint was given beforehand or is confirmed here.

    Nothing is taken silently: where nobody can be asked, all fingerprints that are still to be confirmed are an error.
    """
    from narwhal.deploy import fingerprint, scan

    keys, unknown = {}, []
    for name, ssh in hosts.items():
        keys[name] = key = scan(name, ssh)
        shown = fingerprint(key)
        if shown in accepted:
            continue
        text = f"{name} ({ssh.address} port {ssh.port}) shows {key.split()[0]} {shown}"
        if sys.stdin.isatty():
            progress().say(f"{text}\n  compare it on the host: {_READ_THERE}")
            if typer.confirm("Is it the same?", err=True):
                continue
            raise CommandError(Problem("host_key", f"the key of {name} was not confirmed", hint="pin the right one"))
        hint = f"compare it on the host ({_READ_THERE}), then --accept-host-key {shown}"
        unknown.append(Problem("host_key", f"{text}, which nobody confirmed", hint=hint))
    if unknown:
        raise CommandError(*unknown)
    return keys
