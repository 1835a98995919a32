"""The seven gates: what each asks, and what its answer depends on."""

from dataclasses import dataclass

ROUTER_SECTIONS = ("routers", "serving", "controller", "recovery", "observability", "split", "labels")
"""What only the router reads."""
ROLL = "roll"
DAYS = (ROLL, "rollback", "stop", "purge")
"""Playbooks of the days after."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate."""

    letter: str
    name: str
    """In paths of evidence; its playbook is `gate-NAME.yml`."""
    asks: str
    inputs: tuple[str, ...]
    """What its answer depends on; one whose digest is another now makes it stale. `inputs.py` says what each holds."""
    after: tuple[str, ...] = ()
    """Gates, and playbooks of the days after, that make it stale whenever they change something on a host."""
    rolled: bool = False
    """Whether a roll of the whole fleet that passed answers it, too."""
    by_host: bool = False
    """Whether a host can pass it alone: a changed host is then the only one it runs on."""

    @property
    def playbook(self) -> str:
        """Its playbook, in the run directory."""
        return f"gate-{self.name}.yml"

    @property
    def title(self) -> str:
        """How it is spoken of."""
        return f"{self.letter} {self.name.partition('-')[2]}"


GATES = (
    Gate(
        "A",
        "a-discover",
        "what is really there, and is it what the fleet file says?",
        ("host", "model", "python", "runtime", "ports", "lease"),
    ),
    Gate(
        "B",
        "b-install",
        "is the approved revision on every host, and nothing else?",
        ("host", "model", "revision", "python", "runtime", "launch"),
        after=("purge", "rollback"),
        rolled=True,
        by_host=True,
    ),
    Gate(
        "C",
        "c-engines",
        "does each engine start with the launch that was asked for, and answer?",
        ("host", "model", "revision", "runtime", "launch"),
        after=("B", "stop", "purge", "rollback"),
        rolled=True,
        by_host=True,
    ),
    Gate(
        "D",
        "d-fabric",
        "does each link carry the KV that the workload needs?",
        ("host", "model", "launch", "ports", "address"),
    ),
    Gate(
        "E",
        "e-attest",
        "which exact process is each engine, and do they go together?",
        ("host", "model", "revision", "runtime", "launch", "ports", "address"),
        after=("C", "roll", "stop", "purge", "rollback"),
    ),
    Gate(
        "F",
        "f-profile",
        "how fast is each engine, can the SLO be kept, does KV arrive intact?",
        ("host", "model", "launch", "ports", "address", "access", "slo", "profiles"),
        after=("C", "purge"),
    ),
    Gate(
        "G",
        "g-serve",
        "does the router serve, and can we watch it?",
        (
            *("host", "model", "revision", "launch", "ports", "address", "access", "slo", "profiles", "lease"),
            *ROUTER_SECTIONS,
            "benchmark",
        ),
        after=("B", "F", "stop", "purge", "rollback"),
    ),
)


def gate_of(letter: str) -> Gate:
    """The gate of a letter. Raises `KeyError`."""
    for gate in GATES:
        if gate.letter == letter.upper():
            return gate
    raise KeyError(letter)
