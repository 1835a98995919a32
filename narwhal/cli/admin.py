"""Options of the verbs that talk to a router, and turning what goes wrong there into errors."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narwhal.cli.output import CommandError, Problem

if TYPE_CHECKING:
    from narwhal.diagnose import AdminClient

RouterOption = Annotated[
    str | None, typer.Option("--router", metavar="URL", help="Admin URL of the router: http://HOST:PORT.")
]
FleetOption = Annotated[Path | None, typer.Option("--fleet", metavar="FILE", help="Fleet file whose router is meant.")]


@contextmanager
def router_admin(router: str | None, fleet: Path | None) -> Iterator["AdminClient"]:
    """The router that the options, `NARWHAL_ROUTER` or the dev instance name."""
    from narwhal.dev import Instance, default_directory
    from narwhal.diagnose import NoRouterError, RefusedError, UnreachableError, find_router
    from narwhal.fleet import FleetError, SourceError

    dev = Instance(default_directory(os.environ))
    try:
        yield find_router(router=router, fleet=fleet, environ=os.environ, dev_fleet=dev.fleet if dev.exists else None)
    except NoRouterError as error:
        raise CommandError(Problem("no_router", str(error), hint="narwhal dev init && narwhal dev up")) from None
    except (FleetError, SourceError) as error:
        path = str(fleet or dev.fleet)
        raise CommandError(Problem("fleet", str(error), file=path, hint=f"narwhal validate {path}")) from None
    except UnreachableError as error:
        is_dev = router is None and fleet is None and "NARWHAL_ROUTER" not in os.environ
        hint = "narwhal dev up" if is_dev else "is it the admin port (routers.admin.port), and does it run?"
        raise CommandError(Problem("unreachable", str(error), hint=hint), status="failed") from None
    except RefusedError as error:
        raise CommandError(
            Problem("refused", str(error), hint="narwhal why"), status="failed", data=error.body
        ) from None
