"""`narwhal version`."""

import platform
import sys
from typing import Annotated

import typer

import narwhal
from narwhal.cli.app import app, verb
from narwhal.cli.output import Result


def _print_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"narwhal {narwhal.__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Serve LLMs with prefill and decode on separate engines, and move engines between the roles in seconds."""


@verb("version")
def version(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also versions of Python and dependencies.")] = False,
) -> Result:
    """Print the version of Narwhal.

    Example: narwhal version --verbose
    """
    versions = {"narwhal": narwhal.__version__}
    if verbose:
        from importlib.metadata import version as of

        versions["python"] = platform.python_version()
        versions |= {name: of(name) for name in ("ansible-core", "httptools", "msgspec", "pydantic", "typer", "uvloop")}
    return Result(data={"versions": versions}, text="\n".join(f"{name} {value}" for name, value in versions.items()))
