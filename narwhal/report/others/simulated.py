"""Results of `narwhal simulate --format json`: a point for each policy. Nothing was measured."""

from typing import Any

from narwhal.report.document import ReportPoint, Spread
from narwhal.report.taken import Taken

Json = dict[str, Any]


def is_simulated(document: Any) -> bool:
    """Whether a document is such a result."""
    return (
        isinstance(document, dict) and document.get("command") == "simulate" and "policies" in document.get("data", {})
    )


def simulated_points(document: Json, where: str) -> list[Taken]:
    """A point for each policy. Raises `KeyError` and `TypeError` for what is no such result."""
    run = document["data"]["run"]
    return [Taken(_point(policy, figures, run, where)) for policy, figures in document["data"]["policies"].items()]


def _point(policy: str, figures: Json, run: Json, where: str) -> ReportPoint:
    offered, refused, failed = figures["offered"], figures["refused"], figures["failed"]
    attainment = figures["attainment"]
    return ReportPoint(
        point=run["traffic"],
        source="simulate",
        standing="simulated",
        wrong=[],
        policy=policy,
        evidence=where,
        started_at="",
        slo=None,
        wanted=None,
        asked_rps=run["rate_rps"],
        kept_rps=run["rate_rps"],
        offered=offered,
        served=offered - refused - failed,
        refused=refused,
        failed=failed,
        cut=0,
        cancelled=0,
        attainment=attainment,
        goodput_rps=None if attainment is None else attainment * run["rate_rps"],
        ttft_s=_spread(figures, "ttft"),
        tpot_s=_spread(figures, "tpot"),
        gap_s=None,
        moves=figures["moves"],
        lag_p99_s=None,
    )


def _spread(figures: Json, name: str) -> Spread:
    p50, p90, p99 = (figures[f"{name}_{quantile}_s"] for quantile in ("p50", "p90", "p99"))
    return Spread(count=None, p50=p50, p90=p90, p99=p99)
