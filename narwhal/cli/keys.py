"""`narwhal keys new`: API keys for tenants."""

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from narwhal.cli.app import app, verb
from narwhal.cli.output import CommandError, Problem, Result

keys = typer.Typer(name="keys", no_args_is_help=True, help="Make API keys for tenants.")
app.add_typer(keys)

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@verb("new", group=keys)
def new(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant, as in the fleet file.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="New file for the key, readable by you alone; default: print it.")
    ] = None,
) -> Result:
    """Make a random API key for a tenant, and say where its reference goes in the fleet file.

    Nothing keeps the key but the file, or who reads it here: it is shown once. To rotate, add the new reference beside
    the old one, reload the router, give the new key to the clients, then take the old reference out. A reload reads
    key files; a new environment variable reaches the router only with a restart, so files rotate better.

    Example: narwhal keys new research --out /etc/narwhal/keys/research
    """
    from narwhal.router.tenants import new_key

    if not _NAME.fullmatch(tenant):
        hint = "use up to 63 small letters, digits and hyphens, as in the fleet file"
        raise CommandError(Problem("usage", f"{tenant!r} is no name of a tenant", hint=hint))
    key = new_key()
    if out is None:
        variable = f"NARWHAL_{tenant.replace('-', '_').upper()}_KEY"
        reference = f"{{env: {variable}}}"
        return Result(
            data={"tenant": tenant, "key": key, "file": None, "reference": {"env": variable}},
            text=f"{key}\n\nThis is the only time it is shown. "
            + _where(
                tenant, reference, f"set {variable} to it", "Then restart the router: it sees the variable only then"
            ),
        )
    path = out.absolute()
    _write(path, key)
    return Result(
        data={"tenant": tenant, "key": None, "file": str(path), "reference": {"file": str(path)}},
        artifacts=[str(path)],
        text=f"wrote a new key to {path} (mode 0600). "
        + _where(tenant, f"{{file: {path}}}", "let the router read it", "Then reload the router: narwhal reload FLEET"),
    )


def _where(tenant: str, reference: str, first: str, then: str) -> str:
    return (
        f"On the router's host {first}, and add this to the fleet file:\n\n"
        f"routers:\n  tenants:\n    - name: {tenant}\n      keys: [{reference}]   # two while rotating\n\n"
        f"{then}"
    )


def _write(path: Path, key: str) -> None:
    """Write a key to a file that did not exist and that nobody else can read."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        hint = "name another file: two keys are valid while rotating, each in a file of its own"
        raise CommandError(Problem("exists", "it exists already", file=str(path), hint=hint)) from None
    with os.fdopen(descriptor, "w") as file:
        file.write(key + "\n")
