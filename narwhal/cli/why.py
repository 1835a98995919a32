"""`narwhal why`: why roles moved or did not, and what became of a request."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narwhal.cli.admin import FleetOption, RouterOption, TokenFileOption, router_admin
from narwhal.cli.app import verb
from narwhal.cli.output import CommandError, Problem, Result
from narwhal.cli.spans import seconds_of

if TYPE_CHECKING:
    from narwhal.diagnose.why import Answer, Told

_FORMS = "why, why --since 10m, why move ID, why request ID, why not prefill+1, why not ENGINE decode"


@verb("why", short_help="Explain moves, moves that were held, and requests.")
def why(
    question: Annotated[
        list[str] | None,
        typer.Argument(metavar="[QUESTION]", help="move ID, request ID, not prefill+1, or not ENGINE ROLE."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="SPAN", help="All that was decided in the last 90s, 10m, 2h.")
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option("--journal", metavar="PATH", help="Read a journal's folder or file; no router is asked."),
    ] = None,
    router: RouterOption = None,
    fleet: FleetOption = None,
    token_file: TokenFileOption = None,
) -> Result:
    """Explain the last move, and what held back every better split since, in words and numbers.

    Where engines or pairs are out, slow or were so lately: why, and what is reduced for it. `move` explains a decision
    by its number, `request` a request by its x-request-id or number, `not` why no engine, or not this one, has a role.

    Example: narwhal why --fleet fleet.yaml

    Example: narwhal why --since 10m

    Example: narwhal why move 42

    Example: narwhal why request 7f0c… --journal /var/lib/narwhal/journal

    Example: narwhal why not prefill+1
    """
    words = list(question or [])
    kind = _kind(words, since)
    rows = since is not None or kind in ("move", "request")
    asked = words[1] if kind == "request" else ""
    with _told(journal, rows, asked, (router, fleet, token_file)) as told:
        answer = _answer(told, words, kind, since)
    return Result(data=answer.document.model_dump(by_alias=True, mode="json"), text="\n".join(answer.lines))


def _kind(words: list[str], since: str | None) -> str:
    """Which question is asked."""
    lengths = {"move": (2,), "request": (2,), "not": (2, 3)}
    fits = not words if since is not None else not words or len(words) in lengths.get(words[0], ())
    if not fits or (words[:1] == ["move"] and not words[1].isdecimal()):
        raise CommandError(Problem("usage", f"no question is asked like this: {' '.join(words)}", hint=_FORMS))
    return words[0] if words else "since" if since is not None else "last"


@contextmanager
def _told(
    journal: Path | None, rows: bool, request: str, where: tuple[str | None, Path | None, Path | None]
) -> "Iterator[Told]":
    """What is answered from, with what goes wrong as the verb's errors."""
    from narwhal.diagnose.history import HistoryError
    from narwhal.diagnose.why import UnknownError, from_journal, from_router

    try:
        if journal is not None:
            yield from_journal(journal, request)
            return
        with router_admin(*where) as admin:
            yield from_router(admin, rows=rows, request=request)
    except HistoryError as error:
        hint = "give the journal's folder: journal in the router's state directory, or observability.journal.path"
        raise CommandError(Problem("journal", str(error), hint=hint)) from None
    except UnknownError as error:
        raise CommandError(Problem("unknown", str(error), hint=_FORMS)) from None


def _answer(told: "Told", words: list[str], kind: str, since: str | None) -> "Answer":
    from narwhal.diagnose.why import target_word, why_last, why_move, why_not, why_since

    if kind == "since":
        return why_since(told, seconds_of(since or ""))
    if kind == "move":
        return why_move(told, int(words[1]))
    if kind == "request":
        from narwhal.diagnose.life import why_request  # brings the simulator: nothing that other questions need

        return why_request(told, words[1])
    if kind == "last":
        return why_last(told)
    try:
        return why_not(told, target_word(words[-1]), words[1] if len(words) == 3 else "")
    except ValueError:
        raise CommandError(Problem("usage", f"{words[-1]!r} is no role", hint="prefill+1 or decode+1")) from None
