"""Our own evidence as points of a report: folders whose digests agree, and what is wrong with the others."""

from pathlib import Path

from pydantic import ValidationError

from narwhal.measure import BenchEvidence, BenchRequest, BenchSearch, EvidenceError, Quantiles, load_evidence
from narwhal.report.document import Found, ReportPoint, Spread, Standing, Targets
from narwhal.report.taken import Seen, Taken

REQUESTS = "requests.jsonl"


def read_point(folder: Path, root: Path) -> Taken:
    """The measurement in a folder. Raises `EvidenceError` when not all of it is there as it was written."""
    evidence = load_evidence(folder)
    try:
        lines = (folder / REQUESTS).read_bytes().splitlines()
        rows = [BenchRequest.model_validate_json(line) for line in lines]
    except OSError as error:
        raise EvidenceError(f"{REQUESTS} cannot be read: {error.strerror or error}") from None
    except ValidationError as error:
        raise EvidenceError(f"{REQUESTS} has a line that is no BenchRequest: {error.errors()[0]['msg']}") from None
    scored = sorted((row for row in rows if not row.warmup), key=lambda row: row.planned_s)
    return Taken(_point(evidence, rows, folder, root), [_seen(row) for row in scored], evidence, folder)


def read_search(path: Path) -> Found:
    """A search for goodput. Raises `EvidenceError` when it cannot be read."""
    try:
        search = BenchSearch.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise EvidenceError(f"no BenchSearch: {error}".partition("\n")[0]) from None
    return Found(point=search.point, level=search.level, goodput_rps=search.goodput_rps, above_rps=search.above_rps)


def label(evidence: BenchEvidence, folder: Path) -> str:
    """Name of a point; a rate of a search has it in the name of its folder."""
    parent, name = folder.resolve().parent.name, evidence.point.name
    return parent if parent.partition("@")[0] == name else name


def policy_of(evidence: BenchEvidence) -> str:
    """What decided the split; empty: no router was asked."""
    fleet = evidence.fleet
    if fleet is None:
        return ""
    return f"held {fleet.prefill}p{fleet.decode}d" if fleet.held else fleet.policy


def _point(evidence: BenchEvidence, rows: list[BenchRequest], folder: Path, root: Path) -> ReportPoint:
    figures, verdict, slo = evidence.figures, evidence.verdict, evidence.slo
    return ReportPoint(
        point=label(evidence, folder),
        source="narwhal",
        standing=_standing(evidence),
        wrong=[f"{check.name}: {check.message}" for check in verdict.checks if check.outcome == "failed"],
        policy=policy_of(evidence),
        evidence=str(folder.relative_to(root)),
        started_at=evidence.started_at,
        slo=Targets(ttft_s=slo.ttft_s, tpot_s=slo.tpot_s, by_prompt=bool(slo.ttft_by_prompt)),
        wanted=evidence.point.attainment,
        asked_rps=asked_rps(evidence),
        kept_rps=kept_rps(evidence, rows),
        offered=figures.offered,
        served=figures.served,
        refused=figures.refused,
        failed=figures.failed,
        cut=figures.cut,
        cancelled=figures.cancelled,
        attainment=figures.attainment,
        goodput_rps=figures.goodput_rps,
        ttft_s=_spread(figures.ttft_s),
        tpot_s=_spread(figures.tpot_s),
        gap_s=_spread(figures.gap_s),
        moves=evidence.fleet.moves if evidence.fleet is not None else None,
        lag_p99_s=evidence.client.lag_p99_s,
    )


def _standing(evidence: BenchEvidence) -> Standing:
    if not evidence.verdict.valid:
        return "invalid"
    return "missed" if evidence.verdict.passed is False else "counts"


def asked_rps(evidence: BenchEvidence) -> float:
    """Requests per second as the point declares them; a trace at its own rate: as planned."""
    declared = evidence.point.traffic.rate_rps
    return evidence.figures.offered_rps if declared is None else declared


def kept_rps(evidence: BenchEvidence, rows: list[BenchRequest]) -> float:
    """Requests that were sent in the scored time, per second of it."""
    begin_s, seconds = evidence.point.warmup_s, evidence.point.duration_s
    return sum(begin_s <= row.sent_s < begin_s + seconds for row in rows) / seconds


def _spread(quantiles: Quantiles | None) -> Spread | None:
    if quantiles is None:
        return None
    return Spread(count=quantiles.count, p50=quantiles.p50, p90=quantiles.p90, p99=quantiles.p99)


def _seen(row: BenchRequest) -> Seen:
    return Seen(row.planned_s, row.kind, row.prompt_tokens, row.max_tokens, row.ttft_s, row.tpot_s, row.gap_s, row.met)
