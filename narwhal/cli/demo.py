"""`narwhal demo`: traffic that turns, and roles that follow it, on this machine and without a GPU."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from narwhal.cli.app import progress, verb
from narwhal.cli.output import CommandError, Problem, Result

if TYPE_CHECKING:
    from narwhal.dev.demo import View
    from narwhal.dev.report import DemoReport

_LINE_EVERY_S = 3.0


@verb("demo", short_help="Watch roles follow the traffic on simulated engines.")
def demo(
    seconds: Annotated[float, typer.Option(min=10, max=3600, help="Length of the traffic in seconds.")] = 90,
    seed: Annotated[int, typer.Option(help="Seed of arrivals, lengths and prompts.")] = 1,
    engines: Annotated[int, typer.Option(min=3, max=8, help="Simulated engines of each fleet.")] = 4,
    keep: Annotated[bool, typer.Option("--keep", help="Serve on after the summary, until Ctrl-C.")] = False,
) -> Result:
    """Watch roles follow the traffic: simulated engines, a router, load that turns twice.

    A second fleet with the same engines keeps its split and gets the same requests; the summary compares the two.

    Example: narwhal demo --seconds 60
    """
    from narwhal.dev import DevError
    from narwhal.dev.demo import run_demo
    from narwhal.dev.report import curl_line, summary_lines

    try:
        with _shown() as show:
            report = run_demo(
                seconds=seconds,
                seed=seed,
                engines=engines,
                say=progress().say,
                show=show,
                serve_on=_serve_on if keep else None,
            )
    except DevError as error:
        problem = Problem(error.code, error.message, file=error.file, hint=error.hint)
        raise CommandError(problem, status="failed") from None
    next_step = "" if keep else _next_step(curl_line("http://localhost:8000"))
    return Result(data=report.data(), text="" if keep else "\n".join(summary_lines(report)) + next_step)


def _next_step(curl: str) -> str:
    return f"\n\nA fleet that stays: narwhal dev init && narwhal dev up; then try\n  {curl}"


def _serve_on(report: "DemoReport") -> None:
    from narwhal.dev.report import curl_line, summary_lines

    for text in (*summary_lines(report), "", "still serving, until Ctrl-C; try", "  " + curl_line(report.url)):
        progress().say(text)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return


@contextmanager
def _shown() -> "Iterator[Callable[[View], None]]":
    """The live picture on a terminal, else a line on stderr every few seconds."""
    from narwhal.dev.picture import line, picture

    said = progress()
    if said.quiet or said.as_json or not sys.stdout.isatty():
        last_t = -_LINE_EVERY_S

        def say(view: "View") -> None:
            nonlocal last_t
            if view.t_s - last_t >= _LINE_EVERY_S:
                last_t = view.t_s
                said.say(line(view))

        yield say
        return
    from rich.console import Console
    from rich.live import Live

    live = Live(console=Console(no_color=not said.color), auto_refresh=False)

    def draw(view: "View") -> None:
        if not live.is_started:
            live.start()
        live.update(picture(view), refresh=True)

    try:
        yield draw
    finally:
        live.stop()
