"""`narwhal why`: its questions, each answered from records of decisions, as a document and as lines for people."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from narwhal.diagnose.client import AdminClient
from narwhal.diagnose.decisions import (
    OTHER,
    choice,
    decision_lines,
    explain,
    explained,
    in_a_row,
    scored,
    sentence,
    target_of,
)
from narwhal.diagnose.document import Explained, Why, WhyNot
from narwhal.diagnose.health import TOLD, change_words, standing_lines
from narwhal.diagnose.history import History, Life, ask_history, journal_of, newest, read_history
from narwhal.diagnose.words import guard_words, learning_lines, span

Json = dict[str, Any]
Target = Literal["prefill", "decode"]
OUTCOMES = ("moved", "held", "advised")
"""Outcomes of decisions that a split was better for."""


class UnknownError(Exception):
    """What was asked about is not known here; the message says what is."""


@dataclass(slots=True)
class Told:
    """What a question is answered from."""

    source: Literal["router", "journal"]
    history: History
    """Rows of the journal, as far as the question needs them."""
    now_t: float
    """Present time, or the end of the journal."""
    evaluations: list[Json]
    """The latest decisions of any outcome, oldest first, the last evaluation at the end."""
    changes: list[Json]
    state: Json | None = None
    """Of a router that answers."""
    events: Path | None = None
    """Folder with the events of the journal; None: they are not on this host."""

    @property
    def life(self) -> Life:
        """The router's present life, or the last of the journal."""
        return self.history.now

    @property
    def hold_reason(self) -> str:
        """What the operator said when roles were held."""
        return str(self.state["hold"]["reason"]) if self.state else ""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: the document, and lines for people."""

    document: Why
    lines: list[str]


def from_journal(path: Path, request: str = "") -> Told:
    """Answer from a journal's folder or file; no router is asked. Raises `HistoryError`."""
    history = read_history(path, request)
    life = history.now
    return Told(
        "journal", history, life.last_t, life.decisions, life.changes, events=path if path.is_dir() else path.parent
    )


def from_router(client: AdminClient, *, rows: bool, request: str = "") -> Told:
    """Answer from a router that runs. `rows`: its journal is needed too, from its files where they are on this host."""
    state, changes = client.state(), client.changes()
    evaluations = client.decisions()
    folder = journal_of(client)
    history = History()
    if rows:
        history = read_history(folder, request) if folder is not None else ask_history(client, request)
    kept = {decision["id"] for decision in history.now.decisions}
    history.now.decisions += [decision for decision in evaluations if decision["id"] not in kept]
    return Told("router", history, changes["now_t"], evaluations, changes["changes"], state, folder)


def why_last(told: Told) -> Answer:
    """The last decision that moved engines, and what was held since; why engines and pairs are out."""
    moves = [decision for decision in told.evaluations if decision["outcome"] in OUTCOMES]
    made = [decision for decision in moves if decision["outcome"] != "held"]
    last = made[-1]["id"] if made else -1
    since = [decision for decision in told.evaluations if decision["id"] > last and decision["outcome"] == "held"]
    lines = explain(moves, told.evaluations, told.now_t, told.hold_reason)
    runs = [_explained(told, decision, times) for decision, times in in_a_row(since)]
    if runs[:-1]:
        lines += ["", "before that, since the last move:", *(f"  {_run_line(run)}" for run in runs[:-1])]
    if told.state is not None:
        wrong = standing_lines(told.state, told.changes, told.now_t)
        lines += [*([""] if wrong else []), *wrong, *learning_lines(told.state)]
    held = [decision for decision in told.evaluations if decision["outcome"] == "held"]
    document = Why(
        question="last",
        source=told.source,
        now_t=told.now_t,
        degraded=told.state["degraded"] if told.state else "",
        moves=made,
        held=held,
        explained=[*(_explained(told, decision) for decision in made[-1:]), *runs],
        changes=told.changes,
    )
    return Answer(document, lines)


def why_since(told: Told, seconds: float) -> Answer:
    """Every decision that moved something or was held in the last so many seconds, and the changes between."""
    begin_t = told.now_t - seconds
    recent = [d for d in told.life.decisions if d["t"] >= begin_t and d["outcome"] in OUTCOMES]
    changes = [row for row in told.life.changes or told.changes if row["t"] >= begin_t and row["change"] in TOLD]
    runs = [(_explained(told, decision, times), decision["t"]) for decision, times in in_a_row(recent)]
    lines = [(t, _run_line(run)) for run, t in runs]
    lines += [(row["t"], f"{_when(told.life, row['t'], told.now_t)}  {change_words(row)}") for row in changes]
    text = [line for _, line in sorted(lines, key=lambda pair: pair[0])]
    document = Why(
        question="since",
        source=told.source,
        now_t=told.now_t,
        moves=[decision for decision in recent if decision["outcome"] != "held"],
        held=[decision for decision in recent if decision["outcome"] == "held"],
        explained=[run for run, _ in runs],
        changes=changes,
    )
    return Answer(document, text or [f"nothing was moved, held or changed in the last {span(seconds)}"])


def why_move(told: Told, number: int) -> Answer:
    """One decision, whole. Raises `UnknownError`."""
    found = newest(told.history.lives, number)
    if found is None:
        kept = [decision["id"] for decision in told.life.decisions]
        what = f"decisions {min(kept)} to {max(kept)} are kept, nine of ten that found nothing better are not"
        raise UnknownError(f"decision {number} is not kept: " + (what if kept else "there is none yet"))
    life, decision = found
    now_t = told.now_t if life is told.life else life.last_t
    lines = decision_lines("decision of another life" if life is not told.life else "asked for", decision, now_t, "")
    done = [row for row in life.changes if row["change"] == "moved" and row.get("decision") == number]
    lines += [f"  done     {row['engine']} {row['reason']}, {row['t'] - decision['t']:.3f} s later" for row in done]
    told_of = [decision] if decision["outcome"] in OUTCOMES else []
    document = Why(
        question="move",
        source=told.source,
        now_t=now_t,
        moves=[each for each in told_of if each["outcome"] != "held"],
        held=[each for each in told_of if each["outcome"] == "held"],
        explained=[explained(decision, life, now_t)],
        changes=done,
    )
    return Answer(document, lines)


def why_not(told: Told, target: Target, engine: str = "") -> Answer:
    """Why no engine, or not this one, has gone to a role. Raises `UnknownError`."""
    weighed = [decision for decision in told.evaluations if decision["candidates"]]
    if not weighed:
        last = (
            told.evaluations[-1]["reason"] if told.evaluations else "is controller.enabled, and does the router lead?"
        )
        raise UnknownError(f"no splits were compared yet: {last}")
    decision = weighed[-1]
    reasons = [*_of_state(told.state, target, engine), *_of_decision(decision, target, engine)]
    when = f"decision {decision['id']}, {span(max(told.now_t - decision['t'], 0.0))} ago"
    head = f"{engine or 'an engine'} is not moved to {target} ({when}, {decision['policy']}, by {decision['trigger']}):"
    if decision["outcome"] == "moved" and target_of(decision) == target:
        head = f"engines were moved to {target} ({when}):"
    document = Why(
        question="not",
        source=told.source,
        now_t=told.now_t,
        explained=[_explained(told, decision)],
        why_not=WhyNot(target=target, engine=engine, decision=decision["id"], reasons=reasons),
    )
    return Answer(document, [head, *(f"  {reason}" for reason in reasons)])


def _of_state(state: Json | None, target: str, engine: str) -> list[str]:
    """What an engine's own standing says. Raises `UnknownError` for one that is none."""
    if state is None or not engine:
        return []
    found = {each["id"]: each for each in state["engines"]}
    if engine not in found:
        raise UnknownError(f"no engine is called {engine}; there are {', '.join(sorted(found))}")
    row = found[engine]
    said = [f"{engine} is a {target} engine already"] if row["role"] == target else []
    if row["pin"] not in (None, target):
        said.append(f"{engine} is pinned to {row['pin']}")
    if row["state"] != "live":
        said.append(f"{engine} is {row['state']}" + (f": {row['reason']}" if row["reason"] else ""))
    return said


def _of_decision(decision: Json, target: str, engine: str) -> list[str]:
    """What the record of an evaluation says of a direction."""
    rows, wanted = scored(decision), target_of(decision)
    now, sign = rows[0], 1 if target == "prefill" else -1
    mine = [row for row in rows[1:] if row.change * sign > 0]
    said = [f"the present split {now.split} scores {now.score:.2f} (1.00: at its target, lower is better)"]
    for row in mine:
        word = "better" if row.gain >= 0 else "worse"
        said.append(f"{row.split} would score {row.score:.2f}: {word} by {abs(row.gain):.2f}")
    asked = decision["guards"]
    if wanted == target:
        who = ", ".join(move["engine"] for move in decision["moves"])
        if engine and engine not in {move["engine"] for move in decision["moves"]}:
            said.append(f"{who} would go first: one that still holds work of that role, then the emptiest")
        return said + [f"held: {guard_words(guard, decision)}" for guard in asked if not guard["passed"]]
    if wanted is not None:
        best = choice(decision)
        how = f", scores {best['score']:.2f}" if best is not None else ""
        said.append(f"the decision was about {wanted} instead{how}: {sentence(decision)}")
        return said if mine else [*said, f"no engine could go to {target}: a floor, a pin, or none was live"]
    blocking = [guard for guard in asked if not guard["passed"] and _concerns(guard, target, mine)]
    return said + [f"held: {guard_words(guard, _towards(decision, target))}" for guard in blocking]


def _concerns(guard: Json, target: str, mine: Sequence[object]) -> bool:
    """Whether a gate of an evaluation that found nothing better speaks of this direction."""
    if guard["name"].startswith("min_") and guard["name"] != "min_arrivals":
        return not mine and guard["name"] == f"min_{OTHER[target]}"
    return bool(mine) != bool(guard["engine"])


def _towards(decision: Json, target: str) -> Json:
    """The decision as one about every engine that a gate names, so that words can say from where it would go."""
    names = [guard["engine"] for guard in decision["guards"] if guard["engine"]]
    return {**decision, "moves": [{"engine": n, "source": OTHER[target], "target": target} for n in names]}


def _explained(told: Told, decision: Json, times: int = 1) -> Explained:
    return explained(decision, told.life, told.now_t, times=times)


def _run_line(run: Explained) -> str:
    when = run.at[11:19] if run.at else f"{span(run.ago_s)} ago"
    many = f" (the last of {run.times})" if run.times > 1 else ""
    return f"{when}  decision {run.decision}{many} {run.outcome}: {'; '.join(run.moves) or 'no engine'}, {run.words}"


def _when(life: Life, t: float, now_t: float) -> str:
    at = life.utc(t)
    return at[11:19] if at else f"{span(max(now_t - t, 0.0))} ago"


def target_word(word: str) -> Target:
    """`prefill` or `decode`, with `+1` behind it or not. Raises `ValueError`."""
    name = word.removesuffix("+1")
    if name not in OTHER:
        raise ValueError(word)
    return cast(Target, name)
