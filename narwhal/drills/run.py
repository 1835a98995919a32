"""Running drills, one after the other, each on a fleet of its own."""

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from narwhal.dev import cleaned_up, ends_like_ctrl_c
from narwhal.drills.drill import Drill, DrillError, Figures, UnavailableError
from narwhal.drills.fleet import open_fleet_of

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


def run_drills(drills: Sequence[Drill], say: Say, *, strict: bool = False, where: Path | None = None) -> list[Done]:
    """Run drills; a line for each goes to `say`. `strict`: figures are judged by their goals.

    What a failed one leaves stays in a folder of its name below `where` (default: a new temporary folder). Ctrl-C,
    SIGTERM and a closed terminal raise `KeyboardInterrupt` once all is cleaned up.
    """
    folder = where or Path(tempfile.mkdtemp(prefix="narwhal-drill-"))
    folder.mkdir(parents=True, exist_ok=True)
    done = []
    try:
        with ends_like_ctrl_c():
            for number, drill in enumerate(drills, 1):
                say(f"{number}/{len(drills)} {drill.name}: {drill.fault}")
                done.append(_run(drill, folder / drill.name, strict=strict))
                say(_line(done[-1]))
    finally:
        with suppress(OSError):  # whatever is kept is in it
            folder.rmdir()
    return done


def _run(drill: Drill, folder: Path, *, strict: bool) -> Done:
    began_t = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    figures: Figures = {}
    outcome: Outcome = "failed"
    try:
        with cleaned_up() as stack:
            figures = drill.play(stack.enter_context(open_fleet_of(folder, drill.plan)))
        missed = [words for goal in drill.goals if (words := goal.missed(figures))] if strict else []
        outcome, reason = ("failed", "; ".join(missed)) if missed else ("passed", "")
    except UnavailableError as error:
        outcome, reason = "unavailable", str(error)
    except DrillError as error:
        reason = str(error)
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        reason = f"{type(error).__name__}: {error}"
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if outcome != "failed":
        shutil.rmtree(folder, ignore_errors=True)
    kept = str(folder) if outcome == "failed" else ""
    return Done(drill.name, outcome, figures, reason, time.monotonic() - began_t, kept)


def _line(done: Done) -> str:
    told = ", ".join(f"{name} {value:.4g}" for name, value in done.figures.items() if value is not None)
    text = "; ".join(filter(None, (done.reason, told, f"kept: {done.kept}" if done.kept else "")))
    return f"    {done.outcome} after {done.seconds:.1f} s: {text}"
