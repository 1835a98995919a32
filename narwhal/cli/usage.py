"""What verbs say about their own options: placeholders in the help, and errors that name what was typed."""

from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperOption

from narwhal.cli.output import Problem

_LIMITS = {
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:g}",
    "int_parsing": "it is not a whole number",
    "int_from_float": "it is not a whole number",
    "float_parsing": "it is not a number",
    "finite_number": "it is not a finite number",
}
"""What pydantic calls a mistake in an option, and what we call it."""


class VerbCommand(TyperCommand):
    """A verb whose help says NUMBER, FILE or TEXT where typer would show Python's types."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for param in self.params:
            if param.metavar is None and param.param_type_name == "argument":
                param.metavar = str(param.name).upper()
            elif param.metavar is None and isinstance(param, TyperOption) and not param.is_flag:
                param.metavar = _placeholder(param.type_descriptor)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage line, without braces around what is required, also where it may be given several times."""
        return [piece.strip("{}").replace("}...", "...") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments by their placeholder alone, then options."""
        rows: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                name = record[0] if param.param_type_name == "option" else str(param.metavar)
                many = "..." if param.param_type_name == "argument" and param.nargs != 1 else ""
                rows[param.param_type_name].append((name + many, record[1]))
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            if rows[kind]:
                with formatter.section(title):
                    formatter.write_dl(rows[kind])


def _placeholder(kind: Any) -> str:
    """The placeholder of an option's value."""
    if kind.is_choice:
        return "|".join(str(getattr(choice, "value", choice)) for choice in kind.choices)
    return {int: "NUMBER", float: "NUMBER", Path: "FILE"}.get(kind.annotation, "TEXT")


def usage_problem(error: typer.TyperException) -> Problem:
    """A mistake in what was typed, as a problem; its hint is the help of the verb."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "narwhal"
    text = error.format_message()
    if context and text == context.get_help():
        text = f"no command is given\n{text}"
    return Problem("usage", _value_typed(error) or text.replace(": Value error, ", ": "), hint=f"{path} --help")


def _value_typed(error: typer.TyperException) -> str | None:
    """Option, value and limit, for a number that is none or outside its range."""
    param: Any = getattr(error, "param", None)
    details: Any = getattr(error.__cause__, "errors", None)
    detail = details()[0] if param is not None and details is not None else {}
    if detail.get("type") not in _LIMITS:
        return None
    value = detail["input"]
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    name = max(param.opts, key=len) if param.param_type_name == "option" else param.metavar
    return f"{name} {shown}: {_LIMITS[detail['type']].format(**detail.get('ctx', {}))}"
