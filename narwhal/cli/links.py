"""`narwhal links`: the matrix of directed pairs."""

from narwhal.cli.admin import FleetOption, RouterOption, TokenFileOption, router_admin
from narwhal.cli.app import verb
from narwhal.cli.output import Result


@verb("links", short_help="Show every directed pair: handoffs, KV, failures, canaries.")
def links(router: RouterOption = None, fleet: FleetOption = None, token_file: TokenFileOption = None) -> Result:
    """Show every directed pair of engines that was used or tried: what it carried, what failed, whether it is out.

    Exit code 3 while a pair is out.

    Example: narwhal links --router http://127.0.0.1:8001
    """
    from narwhal.diagnose import links_lines

    with router_admin(router, fleet, token_file) as admin:
        document = admin.links()
    well = all(link["state"] != "out" for link in document["links"])
    return Result(status="success" if well else "degraded", data=document, text="\n".join(links_lines(document)))
