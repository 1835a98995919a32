"""Attainment over the rate, by policy: which one holds its targets up to which load."""

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from narwhal.report.plots.style import below, figure, look, save
from narwhal.report.taken import Run, Taken

LEVEL = 0.9
"""Attainment that goodput asks for."""

TITLE = 44
"""Letters of a line above a panel."""


@dataclass(slots=True)
class Curve:
    """A policy under one kind of traffic."""

    label: str
    points: list[tuple[float, float]] = field(default_factory=list)
    """Rate per second and attainment, by rate."""


def draw_attainment(runs: Sequence[Run], folder: Path) -> list[Path]:
    """A panel for each kind of traffic; nothing when no point has an attainment."""
    kinds = curves(runs)
    if not kinds:
        return []
    columns = min(len(kinds), 2)
    rows = (len(kinds) + 1) // 2
    labels = sorted({curve.label for found in kinds.values() for curve in found})
    with figure(0.8 + 3.1 * rows, rows, columns) as (drawn, axes):
        panels = [axis for row in axes for axis in row]
        for axis, (kind, found) in zip(panels, kinds.items(), strict=False):
            for curve in found:
                rates, shares = zip(*curve.points, strict=True)
                axis.plot(
                    rates, [100 * share for share in shares], label=curve.label, **look(labels.index(curve.label))
                )
            axis.axhline(
                100 * LEVEL, color="#555555", linestyle=(0, (1, 2)), linewidth=1, label=f"{100 * LEVEL:g} %: goodput"
            )
            axis.set(
                title=kind, xlabel="offered rate (requests/s)", ylabel="requests within targets (%)", ylim=(0, 104)
            )
            axis.set_xlim(left=0)
        for axis in panels[len(kinds) :]:
            axis.set_visible(False)
        below(drawn, panels[: len(kinds)], 3)
        return save(drawn, folder, "attainment")


def curves(runs: Sequence[Run]) -> dict[str, list[Curve]]:
    """By kind of traffic, a curve for each policy; runs with the same policy have one each."""
    found: dict[str, dict[str, Curve]] = {}
    several = _policies_of_several(runs)
    for run in runs:
        for one in run.counting:
            rate, attainment = one.point.kept_rps, one.point.attainment
            if rate is None or attainment is None:
                continue
            label = _label(run, one, several)
            curve = found.setdefault(_kind(one), {}).setdefault(label, Curve(label))
            curve.points.append((rate, attainment))
    for each in found.values():
        for curve in each.values():
            curve.points.sort()
    return {_title(kind): list(each.values()) for kind, each in found.items()}


def _policies_of_several(runs: Sequence[Run]) -> set[str]:
    owners = [(one.point.policy, run.name) for run in runs for one in run.counting if one.point.source == "narwhal"]
    policies = [policy for policy, _ in set(owners)]
    return {policy for policy in policies if policies.count(policy) > 1}


def _label(run: Run, one: Taken, several: set[str]) -> str:
    policy = one.point.policy or run.name
    if one.point.source == "simulate":
        return f"{policy}, simulated"
    return f"{policy} ({run.name})" if policy in several else policy


def _kind(one: Taken) -> str:
    """What is sent, but for its rate: points of equal kinds make a curve."""
    if one.evidence is None:
        return json.dumps([one.point.point])
    traffic = one.evidence.point.traffic.model_dump()
    sent = {key: value for key, value in traffic.items() if key not in ("kind", "rate_rps", "curves")}
    changed = {
        key: value for key, value in sent.items() if value is not None and not (key.endswith("scale") and value == 1)
    }
    return json.dumps([changed["mix"]] if set(changed) == {"mix"} else list(_words(changed)))


def _words(traffic: dict[str, object]) -> Iterator[str]:
    for key, value in traffic.items():
        yield str(value) if key in ("mix", "path", "arrivals") else f"{key.replace('_', ' ')} {value}"


def _title(kind: str) -> str:
    words: list[str] = json.loads(kind)
    lines = [words[0]]
    if len(words) > 1:
        lines.append(", ".join(words[1:]))
    return "\n".join(part for line in lines for part in textwrap.wrap(line, TITLE))
