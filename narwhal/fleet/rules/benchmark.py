"""NW080 to NW085: benchmark points, in a file of their own or in the fleet file."""

from collections.abc import Iterator
from typing import cast

from narwhal.fleet.draft import Unknown, known, path_of, written
from narwhal.fleet.facts import Facts
from narwhal.fleet.finding import Path
from narwhal.fleet.model import MixTraffic, Point, RateTraffic, TraceTraffic
from narwhal.fleet.rules.rule import Hit, rule


def points(facts: Facts) -> Iterator[tuple[Path, Point]]:
    """Every point that is a mapping, with its path. Raises `Unknown` where the list is none."""
    benchmark = facts.benchmark
    for point in benchmark.points if benchmark is not None else ():
        yield path_of(point), point


def _rate(point: Point) -> RateTraffic | None:
    """Its traffic where that is a rate."""
    traffic = known(lambda: point.traffic)
    return cast(RateTraffic, traffic) if known(lambda: point.traffic.kind) == "rate" else None


def _trace(point: Point) -> TraceTraffic | None:
    """Its traffic where that is a trace."""
    traffic = known(lambda: point.traffic)
    return cast(TraceTraffic, traffic) if known(lambda: point.traffic.kind) == "trace" else None


def curves(point: Point) -> str | None:
    """The profile that a mix is weighed by, where the file names one."""
    traffic = known(lambda: point.traffic)
    return known(lambda: cast(MixTraffic, traffic).curves) if known(lambda: point.traffic.kind) == "mix" else None


@rule(
    "NW080",
    "point twice",
    means="Two points have one name, and evidence is kept by name.",
    fix="Give each point a name of its own.",
)
def points_have_names_of_their_own(facts: Facts) -> Iterator[Hit]:
    """No two points are called alike."""
    seen: set[str] = set()
    for path, point in points(facts):
        name = known(lambda p: p.name, point)
        if name in seen:
            yield Hit((*path, "name"), f"there is a point {name!r} before", "a name of its own", name)
        if name is not None:
            seen.add(name)


@rule(
    "NW081",
    "chat with token ids",
    means="`/v1/chat/completions` takes messages of text; only completions take token ids as a prompt.",
    fix="Write `prompts: text`, or `endpoint: completions`.",
)
def chat_is_text(facts: Facts) -> Iterator[Hit]:
    """A point that asks for chat has prompts of text."""
    for path, point in points(facts):
        if known(lambda p: p.endpoint, point) == "chat" and known(lambda p: p.prompts, point) == "ids":
            where = (*path, "prompts") if written(point, "prompts") else (*path, "endpoint")
            yield Hit(where, "endpoint is chat, and prompts is ids", "prompts: text", "ids")


@rule(
    "NW082",
    "trace not there",
    means="The file that a point's traffic is read from is not where the point says.",
    fix="Correct the path; a relative one is meant from the folder of this file.",
)
def traces_exist(facts: Facts) -> Iterator[Hit]:
    """Traces are files."""
    for path, point in points(facts):
        traffic = _trace(point)
        name = known(lambda t: t.path, traffic) if traffic is not None else None
        if name is not None and not (facts.folder / name).is_file():
            yield Hit((*path, "traffic", "path"), f"there is no file {name!r}", "the path of a trace", name)


@rule(
    "NW083",
    "prefix longer than the prompt",
    means="The beginning that prompts share is part of their length, and leaves no room for what tells them apart.",
    fix="Shorten `shared_prefix.tokens`, or make the prompts longer.",
)
def prefixes_fit(facts: Facts) -> Iterator[Hit]:
    """A shared prefix is shorter than the shortest prompt of a rate."""
    for path, point in points(facts):
        traffic = _rate(point)
        prefix = known(lambda p: p.shared_prefix.tokens if p.shared_prefix else None, point)
        shortest = known(lambda t: t.prompt_tokens * (1 - t.spread), traffic) if traffic is not None else None
        if prefix is not None and shortest is not None and prefix >= shortest:
            text = f"the prefix has {prefix} tokens, and prompts may have {shortest:.0f}"
            yield Hit((*path, "shared_prefix", "tokens"), text, f"less than {shortest:.0f}", prefix)


@rule(
    "NW084",
    "search without room",
    means="The lowest rate that the search may try is not below the highest.",
    fix="Make `search.low_rps` less than `search.high_rps`.",
)
def searches_have_room(facts: Facts) -> Iterator[Hit]:
    """`low_rps` is less than `high_rps`."""
    for path, point in points(facts):
        bounds = known(lambda p: (p.search.low_rps, p.search.high_rps) if p.search else None, point)
        if bounds is not None and bounds[0] >= bounds[1]:
            text = f"low_rps is {bounds[0]:g}, and high_rps is {bounds[1]:g}"
            yield Hit((*path, "search", "low_rps"), text, f"less than {bounds[1]:g}", bounds[0])


@rule(
    "NW085",
    "requests longer than the engines allow",
    means="Prompt and answer of the point's longest request exceed `engines.max_model_len`: engines would refuse it.",
    fix="Shorten prompts or answers, or raise `engines.max_model_len`.",
)
def requests_fit(facts: Facts) -> Iterator[Hit]:
    """Requests of a rate fit into the engines' context."""
    if facts.own is not None:
        raise Unknown("engines")
    for path, point in points(facts):
        traffic = _rate(point)
        if traffic is None:
            continue
        longest = known(lambda t: (t.prompt_tokens + t.output_tokens) * (1 + t.spread), traffic)
        room = facts.fleet.engines.max_model_len
        if longest is not None and longest > room:
            text = f"requests have up to {longest:.0f} tokens, and max_model_len is {room}"
            yield Hit((*path, "traffic", "prompt_tokens"), text, f"at most {room} with the answer", longest)
