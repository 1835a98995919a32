"""`narwhal discover`: a first fleet file from hosts that exist."""

from typing import Annotated

import typer

from narwhal.cli.app import progress, verb
from narwhal.cli.gatewords import deploy_errors
from narwhal.cli.hostkeys import AcceptOption, confirmed_keys
from narwhal.cli.output import Result


@verb("discover", short_help="Write a first fleet file from what hosts say of themselves.")
def discover(
    targets: Annotated[list[str], typer.Argument(metavar="USER@HOST", help="Hosts; :PORT may follow.")],
    name: Annotated[str, typer.Option("--name", help="Name of the fleet.")] = "fleet",
    model: Annotated[
        str, typer.Option("--model", metavar="PATH", help="The checkpoint's directory on the hosts.")
    ] = "/models/model",
    accept_host_key: AcceptOption = None,
) -> Result:
    """Read system, Python, GPUs and networks of bare hosts over SSH, and print a fleet file made from them.

    Hosts need Python and a way in by key; nothing is installed or left there. Each host key is shown to be confirmed,
    and is pinned in the file.

    Example: narwhal discover ops@10.0.0.1 ops@10.0.0.2 > fleet.yaml
    """
    from narwhal.deploy import draft_fleet_file, look_at, parse_target

    with deploy_errors():
        hosts = {text: parse_target(text) for text in targets}
        keys = confirmed_keys(hosts, accept_host_key or [])
        found = look_at([(hosts[text], keys[text]) for text in hosts])
        text = draft_fleet_file(found, name=name, model=model)
    for host in found:
        gpus = f"{len(host.gpus)} x {host.gpus[0].get('product')}" if host.gpus else "no GPU"
        system = (host.facts.get("os") or {}).get("name") or "unknown system"
        progress().say(f"{host.name}: {system}, {gpus}{_problem(host.facts.get('gpu_problem'))}")
    data = {"fleet": text, "hosts": [{"name": host.name, "facts": dict(host.facts)} for host in found]}
    return Result(data=data, text=text)


def _problem(text: object) -> str:
    return f" ({text})" if text else ""
