"""Running drills, one after the other, each on a fleet of its own."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal

from narwhal.dev import cleaned_up, ends_like_ctrl_c
from narwhal.diagnose import RefusedError, UnreachableError
from narwhal.drills.drill import Drill, DrillError, Figures, UnavailableError
from narwhal.drills.fleet import Fleet, open_fleet_of
from narwhal.drills.real import real_plan

Outcome = Literal["passed", "failed", "unavailable"]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Done:
    """What a drill came to."""

    name: str
    outcome: Outcome
    figures: Figures
    reason: str = ""
    """Why it failed, or what it lacks and the next step; empty when it passed."""
    seconds: float = 0.0
    kept: str = ""
    """Folder of its logs and journals; empty: nothing was kept."""

    def data(self) -> dict[str, Any]:
        """Its part of the verb's result."""
        rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in self.figures.items()}
        return {
            "name": self.name,
            "outcome": self.outcome,
            "figures": rounded,
            "reason": self.reason,
            "seconds": round(self.seconds, 1),
            "kept": self.kept,
        }


def run_drills(
    drills: Sequence[Drill], say: Say, *, strict: bool = False, real: bool = False, where: Path | None = None
) -> list[Done]:
    """Run drills, each on a fleet of its own, or with `real` all on one of real engines; a line for each goes to `say`.

    `strict`: figures are judged by their goals. What a failed one leaves stays in a folder of its name below `where`
    (default: a new temporary folder). Ctrl-C, SIGTERM and a closed terminal raise `KeyboardInterrupt` once all is
    cleaned up.
    """
    folder = where or Path(tempfile.mkdtemp(prefix="narwhal-drill-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with ends_like_ctrl_c():
            if real:
                return _on_one_fleet(drills, folder / "real", say, strict=strict)
            return [_on_its_own(drill, folder / drill.name, say, strict=strict) for drill in drills]
    finally:
        with suppress(OSError):  # whatever is kept is in it
            folder.rmdir()


def _on_its_own(drill: Drill, folder: Path, say: Say, *, strict: bool) -> Done:
    with _emptied(folder) as done, cleaned_up() as stack:
        opened = lambda: stack.enter_context(open_fleet_of(folder, drill.plan))  # noqa: E731
        done.append(_played(drill, opened, folder, say, strict=strict))
    return done[0]


def _on_one_fleet(drills: Sequence[Drill], folder: Path, say: Say, *, strict: bool) -> list[Done]:
    with _emptied(folder) as done, cleaned_up() as stack:
        opened = cache(lambda: stack.enter_context(open_fleet_of(folder, real_plan(say))))
        for drill in drills:
            done.append(_played(drill, opened, folder, say, strict=strict))
            if done[-1].outcome != "passed":  # what comes after it would find a fleet that is none
                break
    return done


@contextmanager
def _emptied(folder: Path) -> Iterator[list[Done]]:
    """A folder for what a fleet leaves, and a list of what came of it: it stays when something failed."""
    shutil.rmtree(folder, ignore_errors=True)
    done: list[Done] = []
    try:
        yield done
    finally:
        if not any(one.outcome == "failed" for one in done):
            shutil.rmtree(folder, ignore_errors=True)


def _played(drill: Drill, opened: Callable[[], Fleet], folder: Path, say: Say, *, strict: bool) -> Done:
    """Play a drill on a fleet, which `opened` starts."""
    say(f"{drill.name}: {drill.fault}")
    began_t = time.monotonic()
    figures: Figures = {}
    outcome: Outcome = "failed"
    try:
        figures = drill.play(opened())
        missed = [words for goal in drill.goals if (words := goal.missed(figures))] if strict else []
        outcome, reason = ("failed", "; ".join(missed)) if missed else ("passed", "")
    except UnavailableError as error:
        outcome, reason = "unavailable", str(error)
    except DrillError as error:
        reason = str(error)
    except (OSError, HTTPException, UnreachableError, RefusedError, ValueError, KeyError) as error:
        reason = f"{type(error).__name__}: {error}"
    kept = str(folder) if outcome == "failed" else ""
    done = Done(drill.name, outcome, figures, reason, time.monotonic() - began_t, kept)
    say(_line(done))
    return done


def _line(done: Done) -> str:
    told = ", ".join(f"{name} {value:.4g}" for name, value in done.figures.items() if value is not None)
    text = "; ".join(filter(None, (done.reason, told, f"kept: {done.kept}" if done.kept else "")))
    return f"    {done.outcome} after {done.seconds:.1f} s: {text}"
