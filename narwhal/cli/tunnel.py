"""`narwhal tunnel`: the router's listeners on this machine's loopback, over SSH."""

import os
import subprocess
import time
from typing import TYPE_CHECKING, Annotated

import typer

from narwhal.cli.app import progress, verb
from narwhal.cli.gatewords import DirectoryOption, FleetArgument, deploy_errors, opened_run
from narwhal.cli.output import CommandError, Problem, Result

if TYPE_CHECKING:
    from narwhal.deploy import Tunnel

PortOption = Annotated[int | None, typer.Option("--port", min=1, max=65535, help="Local port for clients.")]
_LOOK_S = 0.5


@verb("tunnel", short_help="Reach the router from this machine, over SSH.")
def tunnel(
    fleet: FleetArgument,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="Run this through it, then close it; after --.")
    ] = None,
    port: PortOption = None,
    admin_port: Annotated[
        int | None, typer.Option("--admin-port", min=1, max=65535, help="Local port for operators.")
    ] = None,
    standby: Annotated[bool, typer.Option("--standby", help="The standby instead of the primary.")] = False,
    output: DirectoryOption = None,
) -> Result:
    """Open a tunnel to the router's ports for clients and operators, through its host, until Ctrl-C.

    The local ports are the router's own where they are free. The host key must be pinned or confirmed. A COMMAND finds
    the router by NARWHAL_ROUTER, NARWHAL_URL and OPENAI_BASE_URL, and its exit code decides.

    Example: narwhal tunnel fleet.yaml

    Example: narwhal tunnel fleet.yaml -- narwhal status
    """
    from narwhal.deploy import TunnelWish, open_tunnel

    opened = opened_run(fleet, output)
    with deploy_errors(), open_tunnel(opened, TunnelWish(standby, port, admin_port)) as way:
        progress().say(f"{way.router.host}: clients {way.url}/v1, operators {way.admin_url}")
        if command:
            return _run(command, way)
        while not way.ended():
            time.sleep(_LOOK_S)
    raise CommandError(Problem("tunnel", "ssh ended", hint="is the host still up? run it again"), status="failed")


def _run(command: list[str], way: "Tunnel") -> Result:
    from narwhal.deploy import addresses

    try:
        code = subprocess.run(command, env=os.environ | addresses(way), check=False).returncode
    except FileNotFoundError:
        raise CommandError(Problem("command", f"there is no program {command[0]!r}", hint="check its name")) from None
    data = {"router": way.router.host, "url": way.url, "admin_url": way.admin_url, "exit_code": code}
    return Result("failed" if code else "success", data)
