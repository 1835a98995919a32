"""The command line's frame: options that every verb has, output, exit codes."""

import functools
import inspect
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from narwhal.cli.output import STATUSES, CommandError, Problem, Result, show
from narwhal.cli.usage import VerbCommand, usage_problem

app = typer.Typer(
    name="narwhal",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Serve large language models with prefill and decode on separate engines, and move engines between the "
    "roles in seconds.",
)


class Format(StrEnum):
    """How a verb prints its result."""

    text = "text"
    json = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="text for people, json for one CommandResult document.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")]
NoColorOption = Annotated[bool, typer.Option("--no-color", help="Print no colours; NO_COLOR does the same.")]

_COMMON = {
    "format": (FormatOption, Format.text),
    "quiet": (QuietOption, False),
    "no_color": (NoColorOption, False),
}


class Progress:
    """What a verb says while it works: lines on stderr, silent with `--quiet`."""

    def __init__(self, *, quiet: bool = False, color: bool = False, as_json: bool = False) -> None:
        self.quiet = quiet
        self.color = color
        self.as_json = as_json

    def say(self, text: str) -> None:
        """Print one line of progress."""
        if not self.quiet:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


_progress = Progress()


def progress() -> Progress:
    """The progress output of the verb that runs."""
    return _progress


def verb(
    name: str, *, group: typer.Typer | None = None, **settings: Any
) -> Callable[[Callable[..., Result]], Callable[..., None]]:
    """Make a function a verb: it returns a `Result` or raises `CommandError`.

    Adds `--format`, `--quiet` and `--no-color` (unless the function takes an option of that name itself), prints
    the result, and exits with its code. Ctrl-C becomes `interrupted`, 130; what the system refuses, and a bug, become
    `failed`, 4.
    """

    def decorate(function: Callable[..., Result]) -> Callable[..., None]:
        signature = inspect.signature(function)
        own = set(signature.parameters)
        extra = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for key, (annotation, default) in _COMMON.items()
            if key not in own
        ]

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> None:
            global _progress
            common = {key: kwargs[key] if key in own else kwargs.pop(key) for key in _COMMON}
            as_json = str(common["format"]) == "json"
            color = not common["no_color"] and "NO_COLOR" not in os.environ and sys.stderr.isatty()
            _progress = Progress(quiet=common["quiet"], color=color, as_json=as_json)
            try:
                result = function(*args, **kwargs)
            except CommandError as error:
                result = error.result
            except KeyboardInterrupt:
                result = Result(status="interrupted", errors=[Problem("interrupted", "interrupted by Ctrl-C")])
            except OSError as error:
                result = Result(status="failed", errors=[_system_problem(error)])
            except Exception as error:
                traceback.print_exc()
                problem = Problem("bug", f"{type(error).__name__}: {error}", hint="report it with the lines above")
                result = Result(status="failed", errors=[problem])
            raise typer.Exit(show(command, result, as_json=as_json, quiet=common["quiet"], color=color))

        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*signature.parameters.values(), *extra], return_annotation=None
        )
        target = group or app
        command = f"{target.info.name} {name}" if group is not None else name
        target.command(name, cls=VerbCommand, **settings)(run)
        return run

    return decorate


def _system_problem(error: OSError) -> Problem:
    file = None if error.filename is None else str(error.filename if error.filename2 is None else error.filename2)
    return Problem("system", error.strerror or str(error), file=file, hint="check the path, its permissions and space")


def run_app(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; usage errors become a `CommandResult` with `--format json`."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(args=argv, prog_name="narwhal", standalone_mode=False)
    except typer.Exit as stop:
        return int(stop.exit_code)
    except typer.Abort:
        return STATUSES["interrupted"]
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        as_json = "--format=json" in argv or ("--format", "json") in itertools.pairwise(argv)
        command = context.command_path.removeprefix("narwhal").strip() if context else ""
        return show(
            command, Result("unusable", errors=[usage_problem(error)]), as_json=as_json, quiet=False, color=False
        )
    return code if isinstance(code, int) else 0
