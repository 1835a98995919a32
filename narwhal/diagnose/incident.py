"""What the first look at two in the morning is for: what was decided last, what is wrong, and what to type now."""

from typing import Any

from narwhal.diagnose.decisions import sentence
from narwhal.diagnose.words import lease_is_well, only_follows, span

Json = dict[str, Any]


def incident_lines(state: Json, moves: Json, links: Json) -> list[str]:
    """The last move with its reason, pairs that carry no handoffs, and the next step where something is wrong."""
    made = [decision for decision in moves.get("moves", ()) if decision["outcome"] == "moved"]
    lines = [_moved(made[-1], moves["now_t"])] if made else []
    out = pairs_out(links)
    lines += [f"pair out  {row['producer']} > {row['consumer']}: {row['reason'] or 'not told'}" for row in out]
    step = next_step(state, pairs=bool(out))
    return [*lines, *([f"next      {step}"] if step else [])]


def pairs_out(links: Json) -> list[Json]:
    """Directed pairs that carry no handoffs."""
    return [row for row in links.get("links", ()) if row["state"] == "out"]


def next_step(state: Json, *, pairs: bool) -> str:
    """The command that tells more of the gravest thing that is wrong; empty: nothing is."""
    if not lease_is_well(state):
        return "narwhal logs router; is the lease's store up, and the other router?"
    out = [each for each in state["engines"] if each["state"] in ("ejected", "suspected", "silent")]
    if out and not only_follows(state):
        return f"narwhal why; narwhal logs {out[0]['id']}"
    if pairs:
        return "narwhal links; narwhal why"
    drained = [each for each in state["engines"] if each["state"] in ("draining", "drained")]
    if drained:
        return f"narwhal readmit {drained[0]['id']} brings it back"
    return "narwhal unhold lets roles move again" if state["hold"]["on"] else ""


def _moved(decision: Json, now_t: float) -> str:
    moves = ", ".join(f"{move['engine']} {move['source']} → {move['target']}" for move in decision["moves"])
    ago = span(max(now_t - decision["t"], 0.0))
    return f"last move {moves}, {ago} ago (decision {decision['id']}): {sentence(decision)}"
