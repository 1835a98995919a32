"""`narwhal bench`: declared load against a running fleet, with evidence of each point."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from narwhal.cli.admin import RouterOption, TokenFileOption, router_admin
from narwhal.cli.app import progress, verb
from narwhal.cli.output import CommandError, Problem, Result
from narwhal.cli.validate import finding_problem, opened_fleet, source_problem

if TYPE_CHECKING:
    from narwhal.diagnose import AdminClient
    from narwhal.fleet import Expanded
    from narwhal.fleet.model import Points
    from narwhal.measure import Plan, Ran, Target

KEY_VARIABLE, URL_VARIABLE, ROUTER_VARIABLE = "NARWHAL_API_KEY", "NARWHAL_URL", "NARWHAL_ROUTER"


class _Declared(NamedTuple):
    """Points, the name they go by, and what relative paths in them are meant from."""

    points: "Points"
    name: str
    folder: Path


@verb("bench", short_help="Measure declared points on a running fleet, and keep the evidence of each.")
def bench(
    target: Annotated[
        str, typer.Argument(metavar="FLEET|URL", help="Fleet file, or URL that clients use: http://HOST:PORT.")
    ],
    points: Annotated[
        Path | None,
        typer.Option("--points", metavar="FILE", help="Benchmark file; default: `benchmark` of the fleet file."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where evidence is kept.")] = Path(
        "run/bench"
    ),
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="POINT", help="Only this point; again for more.")
    ] = None,
    goodput: Annotated[
        bool,
        typer.Option("--goodput", help="Search the highest rate at which 90 % of the requests meet their targets."),
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure points too whose evidence still holds.")] = False,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Model to ask for; default: what the router serves.")
    ] = None,
    unwatched: Annotated[
        bool, typer.Option("--unwatched", help="Ask no router: whatever serves at the URL is measured, unchecked.")
    ] = False,
    router: RouterOption = None,
    token_file: TokenFileOption = None,
) -> Result:
    """Measure benchmark points in order, open loop, on a fleet that is idle and healthy.

    Each point leaves a folder: what was sent and when, what came of it, the router's journal rows, state and metrics,
    and a verdict on whether the figures count. A point whose evidence counts and whose inputs are the same is passed
    over. Ctrl-C ends the point under way; those before it are kept. NARWHAL_API_KEY holds a tenant's key; NARWHAL_URL
    and NARWHAL_ROUTER name other ways to the fleet file's router, such as a tunnel's.

    Exit code: 0 all figures count and are as declared, 1 some are below, 3 some do not count, 4 a fleet in the way.

    Example: narwhal bench fleet.yaml

    Example: narwhal bench http://127.0.0.1:8000 --router http://127.0.0.1:8001 --points bench.yaml --goodput
    """
    from narwhal.measure import Plan, Ran

    declared, expanded = _declared(target, points)
    if only:
        declared = declared._replace(points=_chosen(declared.points, only))
    with ExitStack() as stack:
        admin = None if unwatched else stack.enter_context(_admin(target, expanded, router, token_file))
        served = model or (admin.state()["model"] if admin is not None else None) or _model(expanded)
        plan = Plan(
            name=declared.name,
            points=declared.points,
            folder=declared.folder,
            target=_target(target, expanded, served),
            out=out,
            admin=admin,
            expanded=expanded,
            again=again,
        )
        ran = Ran()
        interrupted = _run(plan, ran, goodput=goodput)
    return _result(ran, interrupted=interrupted)


def _is_url(target: str) -> bool:
    return target.startswith(("http://", "https://"))


def _declared(target: str, points: Path | None) -> "tuple[_Declared, Expanded | None]":
    """The points that are meant, and the fleet if a fleet file was named."""
    from narwhal.fleet import SourceError, check_file

    expanded = None if _is_url(target) else opened_fleet(Path(target))
    if points is None:
        if expanded is None or expanded.fleet.benchmark is None:
            where = "a URL declares no points" if expanded is None else "the fleet file declares no points"
            hint = (
                "name a file with --points FILE (narwhal schema benchmark), or write `benchmark:` into the fleet file"
            )
            raise CommandError(Problem("points", where, file=None if expanded is None else target, hint=hint))
        return _Declared(expanded.fleet.benchmark, expanded.fleet.metadata.name, expanded.folder), expanded
    try:
        checked = check_file(str(points))
    except SourceError as error:
        raise CommandError(source_problem(error)) from error
    if checked.findings:
        raise CommandError(*map(finding_problem, checked.findings))
    if checked.benchmark is not None:
        return _Declared(checked.benchmark, checked.benchmark.metadata.name, points.parent), expanded
    if checked.fleet is not None and checked.fleet.benchmark is not None:
        return _Declared(checked.fleet.benchmark, checked.fleet.metadata.name, points.parent), expanded
    hint = "write `kind: Benchmark` (narwhal schema benchmark)"
    raise CommandError(Problem("points", "the file declares no points", file=str(points), hint=hint))


def _chosen(points: "Points", only: list[str]) -> "Points":
    names = [point.name for point in points.points]
    for name in only:
        if name not in names:
            raise CommandError(Problem("point", f"there is no point {name!r}", hint=f"one of {', '.join(names)}"))
    return points.model_copy(update={"points": [point for point in points.points if point.name in only]})


@contextmanager
def _admin(
    target: str, expanded: "Expanded | None", router: str | None, token_file: Path | None
) -> "Iterator[AdminClient]":
    """The router's admin listener: as it was named, else that of the fleet file."""
    url = router or (os.environ.get(ROUTER_VARIABLE) if expanded is None or URL_VARIABLE in os.environ else None)
    if url is None and expanded is None:
        hint = "--router http://HOST:ADMIN_PORT; or --unwatched, where no narwhal router serves"
        raise CommandError(Problem("no_router", "a URL alone does not say where the admin listener is", hint=hint))
    with router_admin(url, Path(target) if expanded is not None else None, token_file) as admin:
        yield admin


def _model(expanded: "Expanded | None") -> str:
    if expanded is None:
        raise CommandError(Problem("model", "nobody says which model is served", hint="--model NAME"))
    return expanded.fleet.model.name


def _target(target: str, expanded: "Expanded | None", model: str) -> "Target":
    """Where clients ask."""
    import ssl
    from urllib.parse import urlsplit

    from narwhal.fleet.expand import base_url
    from narwhal.measure import Target

    url = target
    if expanded is not None:
        spec = expanded.routers[0]
        address = spec.address if spec.bind == "0.0.0.0" else spec.bind  # noqa: S104 - all of its addresses
        url = os.environ.get(URL_VARIABLE) or base_url(address, spec.port, tls=expanded.fleet.routers.tls is not None)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        host = None
    if not host:
        raise CommandError(Problem("url", f"{url!r} is no URL of a server", hint="write http://HOST:PORT"))
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    return Target(host, port, model, os.environ.get(KEY_VARIABLE, ""), tls=tls)


def _run(plan: "Plan", ran: "Ran", *, goodput: bool) -> bool:
    """Measure; returns whether that was interrupted. What is measured until then is in `ran`."""
    import uvloop

    from narwhal.dev import ends_like_ctrl_c
    from narwhal.fleet import ProfileError
    from narwhal.measure import BenchError, run_points, search_points
    from narwhal.simulate import TraceError, TrafficError

    try:
        with ends_like_ctrl_c():
            uvloop.run((search_points if goodput else run_points)(plan, ran, progress().say))
    except KeyboardInterrupt:
        return True
    except BenchError as error:
        status = "failed" if error.failed else "unusable"
        problem = Problem(error.code, error.message, hint=error.hint)
        raise CommandError(problem, status=status, data=_data(ran)) from error
    except (ProfileError, TraceError, TrafficError) as error:
        code = type(error).__name__.removesuffix("Error").lower()
        raise CommandError(
            Problem(code, str(error), hint="narwhal validate names the field"), data=_data(ran)
        ) from error
    return False


def _data(ran: "Ran") -> dict[str, object]:
    points = [
        {
            "point": one.evidence.point.name,
            "evidence": str(one.folder),
            "kept": one.kept,
            "figures": one.evidence.figures.model_dump(),
            "client": one.evidence.client.model_dump(),
            "verdict": one.evidence.verdict.model_dump(),
        }
        for one in ran.measured
    ]
    return {"points": points, "searches": [search.model_dump(by_alias=True) for _, search in ran.searches]}


def _result(ran: "Ran", *, interrupted: bool) -> Result:
    from narwhal.measure import summary, table

    lines = table(ran.measured) if ran.measured else []
    for _, search in ran.searches:
        found = "no rate held" if search.goodput_rps is None else f"goodput {search.goodput_rps:g} req/s"
        above = "" if search.above_rps is None else f", {search.above_rps:g} did not hold"
        lines.append(f"{search.point}: {found}{above}")
    verdicts = [one.evidence.verdict for one in ran.measured]
    status = "success"
    if any(not verdict.valid for verdict in verdicts):
        status = "degraded"
    if not ran.searches and any(verdict.passed is False for verdict in verdicts):
        status = "findings"
    problems = [
        Problem("invalid", f"{one.evidence.point.name}: {summary(one.evidence)}", hint=f"its evidence: {one.folder}")
        for one in ran.measured
        if not one.evidence.verdict.valid
    ]
    if interrupted:
        status = "interrupted"
        problems = [Problem("interrupted", f"interrupted; {len(ran.measured)} points are whole, and kept")]
    artifacts = [str(one.folder) for one in ran.measured] + [str(path) for path, _ in ran.searches]
    return Result(status, _data(ran), artifacts, problems, "\n".join(lines))
