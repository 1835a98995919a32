"""A decision of the role controller, told by its own record: what each split scored, which gate held it."""

from collections.abc import Sequence
from typing import Any

from narwhal.diagnose.document import AskedGate, Explained, ScoredSplit, Verdict
from narwhal.diagnose.history import Life
from narwhal.diagnose.words import HELD_BY, guard_words, span

Json = dict[str, Any]
OTHER = {"prefill": "decode", "decode": "prefill"}


def explained(decision: Json, life: Life, now_t: float, *, times: int = 1) -> Explained:
    """A decision in words and numbers. `now_t`: on the clock that dates it."""
    return Explained(
        decision=decision["id"],
        times=times,
        at=life.utc(decision["t"]),
        ago_s=max(now_t - decision["t"], 0.0),
        outcome=decision["outcome"],
        moves=[f"{move['engine']} {move['source']} → {move['target']}" for move in decision["moves"]],
        candidates=scored(decision),
        gates=[
            AskedGate(
                gate=guard["name"],
                engine=guard["engine"],
                passed=guard["passed"],
                value=guard["value"],
                limit=guard["limit"],
                words=guard_words(guard, decision),
            )
            for guard in decision["guards"]
        ],
        words=sentence(decision),
    )


def sentence(decision: Json) -> str:
    """Why a decision did what it did, in one sentence."""
    reason = str(decision["reason"]).partition(HELD_BY)[0]
    failed = [guard for guard in decision["guards"] if not guard["passed"]]
    if decision["outcome"] not in ("held", "advised") or not failed:
        return reason
    # what a rule holds is not confirmed either: that says nothing more
    told = [guard for guard in failed if guard["name"] != "confirmations"] or failed
    return f"{reason}; held: {'; '.join(dict.fromkeys(guard_words(guard, decision) for guard in told))}"


def scored(decision: Json) -> list[ScoredSplit]:
    """The splits of a decision, each with what became of it."""
    rows = decision["candidates"]
    if not rows:
        return []
    now, chosen = rows[0], choice(decision)
    return [
        ScoredSplit(
            split=f"{row['prefill']}P{row['decode']}D",
            change=row["prefill"] - now["prefill"],
            score=row["score"],
            gain=now["score"] - row["score"],
            verdict="now" if row is now else _verdict(decision, row, chosen),
        )
        for row in rows
    ]


def choice(decision: Json) -> Json | None:
    """The candidate that a decision is about: the best one in the direction of its moves; None: it is about none."""
    rows, target = decision["candidates"], target_of(decision)
    if target is None or not rows:
        return None
    sign = 1 if target == "prefill" else -1
    towards = [row for row in rows[1:] if (row["prefill"] - rows[0]["prefill"]) * sign > 0]
    return min(towards, key=lambda row: row["score"], default=None)


def target_of(decision: Json) -> str | None:
    """The role that a decision gives engines, or would have given."""
    targets = {move["target"] for move in decision["moves"]}
    return targets.pop() if len(targets) == 1 else None


def _verdict(decision: Json, row: Json, chosen: Json | None) -> Verdict:
    if row is not chosen:
        return "not chosen" if chosen is not None else "not enough"
    outcome = decision["outcome"]
    return outcome if outcome in ("moved", "held", "advised") else "not enough"


def in_a_row(decisions: Sequence[Json]) -> list[tuple[Json, int]]:
    """Decisions, those that the same gates held from the same moves in a row as one: the latest, and how many."""
    told: list[tuple[Json, int]] = []
    for decision in decisions:
        if told and decision["outcome"] == "held" and _mark(told[-1][0]) == _mark(decision):
            told[-1] = decision, told[-1][1] + 1
        else:
            told.append((decision, 1))
    return told


def _mark(decision: Json) -> tuple[object, ...]:
    gates = sorted((guard["name"], guard["engine"]) for guard in decision["guards"] if not guard["passed"])
    return decision["outcome"], decision["trigger"] == "operator", target_of(decision), tuple(gates)


def explain(moves: Sequence[Json], decisions: Sequence[Json], now_t: float, hold_reason: str = "") -> list[str]:
    """The last decision that moved engines, and what held the better splits since, the newest first.

    `decisions`: the latest ones of any outcome; `now_t`: the present time on the clock that dates them, in seconds.
    """
    made = [decision for decision in moves if decision["outcome"] == "moved"]
    lines = ["no engine has been moved yet"]
    if made:
        lines = decision_lines("last move", made[-1], now_t, hold_reason)
    since = made[-1]["id"] if made else -1
    later = [decision for decision in decisions if decision["id"] > since and decision["outcome"] == "held"]
    if not later:
        return [*lines, "", "nothing better was held back since"]
    orders = sum(_is_refused_order(decision) for decision in later)
    many = f"{len(later)} {'order' if orders == len(later) else 'decision'}{'s' if len(later) > 1 else ''}"
    word = "refused" if orders == len(later) else "held back or refused" if orders else "held back"
    lines += ["", f"{word} since: {many}, the latest:"]
    title = "an order of the operator's" if _is_refused_order(later[-1]) else "held"
    return [*lines, *decision_lines(title, later[-1], now_t, hold_reason)]


def _is_refused_order(decision: Json) -> bool:
    return bool(decision["trigger"] == "operator" and decision["outcome"] == "held")


def decision_lines(title: str, decision: Json, now_t: float, hold_reason: str) -> list[str]:
    """A decision, whole: what it did and why, every split that it weighed, every gate that it asked."""
    order = _is_refused_order(decision)
    moves = "; ".join(f"{move['engine']} {move['source']} → {move['target']}" for move in decision["moves"])
    lines = [
        f"{title}: decision {decision['id']}, {span(max(now_t - decision['t'], 0.0))} ago, {decision['policy']},"
        f" by {decision['trigger']}, from {decision['prefill']} prefill / {decision['decode']} decode",
        f"  {decision['outcome']}: {moves or 'no engine'}" if not order else "",
        f"  {'refused:' if order else 'because'} {decision['reason'].partition(HELD_BY)[0]}",
    ]
    lines = [line for line in lines if line]
    if decision["candidates"]:
        lines.append(f"  {'split':<8}{'TTFT':>8}{'TPOT':>8}{'seats':>8}{'score':>8}{'gain':>8}   (1.00: at its target)")
    for row, split in zip(decision["candidates"], scored(decision), strict=True):
        gain = "" if split.verdict == "now" else f"{split.gain:+.2f}"
        lines.append(
            f"  {split.split:<8}{row['ttft']:>8.2f}{row['tpot']:>8.2f}{row['queue']:>8.2f}{row['score']:>8.2f}{gain:>8}"
            f"   {split.verdict}"
        )
    for guard in decision["guards"]:
        verdict = "passed" if guard["passed"] else "held"
        lines.append(f"  {verdict:<8}{guard_words(guard, decision, hold_reason)}")
    if decision["inputs"]:
        lines.append("  from " + ", ".join(f"{name} {value:.4g}" for name, value in sorted(decision["inputs"].items())))
    return lines
