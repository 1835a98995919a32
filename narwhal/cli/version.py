"""`narwhal version`."""

import platform
from typing import Annotated

import typer

import narwhal
from narwhal.cli.app import app, verb
from narwhal.cli.output import Result


@app.callback()
def _root() -> None:
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
