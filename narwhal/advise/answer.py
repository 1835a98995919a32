"""From what the runs found to an answer: who wins, by how much, with what certainty."""

from collections.abc import Mapping, Sequence

from narwhal.advise.arms import Arm, Kind
from narwhal.advise.certainty import BLOCK_S, RESAMPLES, Draw, Sample
from narwhal.advise.document import (
    Advice,
    Arrangement,
    Certainty,
    ChangeTried,
    EngineCount,
    Interval,
    Swing,
    Verdict,
)
from narwhal.advise.study import KINDS, MARGIN, Found, Study


def judged(ratio: Interval) -> Verdict:
    """Who wins by a ratio of disaggregated to colocated; only a difference beyond chance and margin counts."""
    if ratio.low > 1 and ratio.value >= 1 + MARGIN:
        return "disaggregate"
    if ratio.high < 1 and ratio.value <= 1 / (1 + MARGIN):
        return "colocate"
    return "cannot_tell"


def ratio_of(sample: Sample, arms: Sequence[Arm], reference: Arm) -> Interval:
    """Goodput of the best of `arms` over that of `reference`; each resample chooses its own best."""

    def figure(draw: Draw | None) -> float:
        return max(sample.goodput(arm, draw) for arm in arms) / sample.goodput(reference, draw)

    found = sample.estimate(figure)
    return Interval(value=found.value, low=found.low, high=found.high)


def answered(study: Study, about: Mapping[str, object], swing: Swing, caveats: list[str]) -> Advice:
    """The document. `about`: what was asked, by the document's own names."""
    found = study.found
    whole, static, moving = (found.best(kind) for kind in KINDS)
    apart = [arm for arm in (static, moving) if arm is not None]
    ready = bool(found.runs)
    sample = found.sample()
    ratio = ratio_of(sample, apart, whole) if ready and whole is not None and apart else None
    moving_ratio = ratio_of(sample, [moving], static) if ready and moving is not None and static is not None else None
    verdict = _verdict(found, ratio)
    roles = judged(moving_ratio) if moving_ratio is not None else "cannot_tell"
    tried = [_tried(study, number, verdict) for number in range(len(found.changes))]
    best = _best_apart(moving, static, moves=roles == "disaggregate")
    recommended = best if verdict == "disaggregate" and best is not None else whole
    return Advice.model_validate(
        {
            **about,
            "kind": "Advice",
            "verdict": verdict,
            "reason": _reason(study, verdict, ratio, best),
            "recommendation": recommended.policy if recommended is not None else "colocated",
            "roles": {"disaggregate": "moving", "colocate": "static", "cannot_tell": "cannot_tell"}[roles],
            "ratio": ratio,
            "moving_ratio": moving_ratio,
            "swing": swing,
            "arrangements": _arrangements(study, sample),
            "changes": tried,
            "nearest_flip": min((one for one in tried if one.flips), key=_distance, default=None),
            "certainty": Certainty(
                seeds=sample.seeds,
                blocks=sample.blocks,
                block_s=BLOCK_S,
                resamples=RESAMPLES,
                margin=MARGIN,
                runs=study.runner.done,
            ),
            "left_out": found.left_out,
            "caveats": caveats,
        }
    )


def _verdict(found: Found, ratio: Interval | None) -> Verdict:
    if ratio is not None:
        return judged(ratio)
    whole, apart = found.best("colocated"), found.best("static") or found.best("adaptive")
    if (whole is None) == (apart is None):
        return "cannot_tell"
    return "disaggregate" if whole is None else "colocate"


def _best_apart(moving: Arm | None, static: Arm | None, *, moves: bool) -> Arm | None:
    """The disaggregated arrangement to name: roles that move only where that was seen to win."""
    return moving if static is None or (moves and moving is not None) else static


def _distance(change: ChangeTried) -> float:
    return max(change.factor, 1 / change.factor)


def _tried(study: Study, number: int, verdict: Verdict) -> ChangeTried:
    change, then, name = study.found.changes[number]
    return ChangeTried(
        knob=change.knob,
        factor=change.factor,
        words=change.words(study.base),
        verdict=then,
        arrangement=name,
        flips=then != verdict,
    )


def _reason(study: Study, verdict: Verdict, ratio: Interval | None, best: Arm | None) -> str:
    found = study.found
    whole = found.best("colocated")
    if not found.climbs:
        return "Cannot tell: the time was over before all arrangements were tried; raise --budget-s."
    if whole is None and best is None:
        return "Cannot tell: no arrangement holds even a small part of what the fleet should do by its profiles."
    if whole is None:
        assert best is not None
        return f"Disaggregate: {best.policy} holds these targets; colocated engines hold them at no rate."
    if best is None:
        return "Stay colocated: no split of these engines holds the targets at any rate."
    if ratio is None:
        return "Cannot tell: the time was over before the figures were certain; raise --budget-s."
    span = f"{ratio.value:.2f} times [{ratio.low:.2f}, {ratio.high:.2f}]"
    if verdict == "disaggregate":
        return f"Disaggregate: the best of it, {best.policy}, holds {span} the rate that {whole.policy} holds."
    if verdict == "colocate":
        return f"Stay colocated: the best disaggregated arrangement holds only {span} what {whole.policy} holds."
    why = (
        "which may be chance"
        if ratio.low <= 1 <= ratio.high
        else f"and less than {100 * MARGIN:.0f} % apart is within the simulator's own error"
    )
    return (
        f"Cannot tell: the best disaggregated arrangement holds {span} what {whole.policy} holds, {why}. "
        "Colocated engines are simpler to run: keep them unless a benchmark of your own says otherwise."
    )


def _arrangements(study: Study, sample: Sample) -> list[Arrangement]:
    rows = []
    for kind in KINDS:
        if kind not in study.found.climbs:
            continue
        best = study.found.best(kind)
        brackets = study.found.climbs[kind].brackets
        arms = sorted(study.arms[kind], key=lambda arm: (arm != best, -brackets[arm][0]))
        rows += [_arrangement(study, sample, arm, brackets[arm], best=arm == best) for arm in arms]
    return rows


def _arrangement(
    study: Study, sample: Sample, arm: Arm, bracket: tuple[float, float | None], *, best: bool
) -> Arrangement:
    ran, rate_rps = study.found.runs.get(arm, {}), study.base.rate_rps
    goodput = sample.estimate(lambda draw: sample.goodput(arm, draw)) if best and ran else None
    share = sample.estimate(lambda draw: sample.attainment(arm, rate_rps, draw)) if rate_rps in ran else None
    return Arrangement(
        name=arm.policy,
        kind=arm.kind,
        held_rps=bracket[0],
        failed_rps=bracket[1],
        goodput_rps=Interval(value=goodput.value, low=goodput.low, high=goodput.high) if goodput else None,
        attainment=Interval(value=share.value, low=share.low, high=share.high) if share else None,
        engines=_engines(study.found, arm.kind) if best else None,
    )


def _engines(found: Found, kind: Kind) -> EngineCount | None:
    needed = found.engines.get(kind, [])
    counts = sorted((one for one in needed if one is not None), key=lambda one: one[0])
    if not counts or len(counts) < len(needed):
        return None
    return EngineCount(least=counts[0][0], most=counts[-1][0], arrangement=counts[-1][1].policy)
