"""Options of the verbs that talk to a router, and turning what goes wrong there into errors."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narwhal.cli.output import CommandError, Problem

if TYPE_CHECKING:
    from narwhal.diagnose import AdminClient

RouterOption = Annotated[
    str | None, typer.Option("--router", metavar="URL", help="Admin URL of the router: http://HOST:PORT or unix:PATH.")
]
FleetOption = Annotated[Path | None, typer.Option("--fleet", metavar="FILE", help="Fleet file whose router is meant.")]
TokenFileOption = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="File with the admin token; NARWHAL_ADMIN_TOKEN holds one too."),
]


def same_router(router: str | None, fleet: Path | None) -> str:
    """The options that name the same router again, for a hint; empty when it is found without."""
    if router is not None:
        return f" --router {shlex.quote(router)}"
    return "" if fleet is None else f" --fleet {shlex.quote(str(fleet))}"


@contextmanager
def router_admin(router: str | None, fleet: Path | None, token_file: Path | None = None) -> Iterator["AdminClient"]:
    """The router that the options, `NARWHAL_ROUTER` or the dev instance name."""
    from narwhal.dev import Instance, default_directory
    from narwhal.diagnose import (
        AddressError,
        NoRouterError,
        NoTokenError,
        RefusedError,
        UnreachableError,
        find_router,
    )
    from narwhal.fleet import FleetError, SourceError

    dev = Instance(default_directory(os.environ))
    try:
        yield find_router(
            router=router,
            fleet=fleet,
            environ=os.environ,
            dev_fleet=dev.fleet if dev.exists else None,
            token_file=token_file,
        )
    except NoRouterError as error:
        raise CommandError(Problem("no_router", str(error), hint="narwhal dev init && narwhal dev up")) from None
    except NoTokenError as error:
        hint = "give --token-file FILE, set NARWHAL_ADMIN_TOKEN, or ask on the router's own host as its user"
        raise CommandError(Problem("token", str(error), hint=hint)) from None
    except AddressError as error:
        raise CommandError(
            Problem("router", str(error), hint="write http://HOST:PORT, the admin listener's, or unix:PATH")
        ) from None
    except (FleetError, SourceError) as error:
        path = str(fleet or dev.fleet)
        raise CommandError(Problem("fleet", str(error), file=path, hint=f"narwhal validate {path}")) from None
    except UnreachableError as error:
        is_dev = router is None and fleet is None and "NARWHAL_ROUTER" not in os.environ
        hint = "narwhal dev up" if is_dev else "is it the admin port (routers.admin.port), and does it run?"
        raise CommandError(Problem("unreachable", str(error), hint=hint), status="failed") from None
    except RefusedError as error:
        if error.status == HTTPStatus.NOT_FOUND and "no engine" in str(error):
            raise CommandError(Problem("engine", str(error), hint="name one of these"), data=error.body) from None
        if error.status == HTTPStatus.NOT_FOUND:
            hint = "that is no admin listener: name the router's admin port (routers.admin.port; narwhal show FLEET)"
        elif (error.body.get("error") or {}).get("code") == "frozen":
            hint = f"narwhal status{same_router(router, fleet)}; --fleet FILE finds the router of this host that leads"
        elif error.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            hint = (
                "give --token-file FILE or set NARWHAL_ADMIN_TOKEN with a token whose scope allows it; on the router's "
                "own host its Unix socket needs none: --fleet with the file it was started with finds it, or --router "
                "unix:PATH with the path that its log names"
            )
        else:
            hint = f"narwhal why{same_router(router, fleet)}"
        raise CommandError(Problem("refused", str(error), hint=hint), status="failed", data=error.body) from None
