"""Measured profiles on disk: one file for each contract, beside the samples they were fitted to."""

from pathlib import Path

from narwhal.documents import write_atomically
from narwhal.fleet import Profile, load_profile

SAMPLES = "samples"


def profile_path(folder: Path, contract: str) -> Path:
    """Where the profile of a contract is kept."""
    return folder / f"{contract}.json"


def samples_path(folder: Path, engine: str) -> Path:
    """Where the samples of an engine are kept."""
    return folder / SAMPLES / f"{engine.replace('/', '-')}.jsonl"


def save_profile(folder: Path, profile: Profile) -> Path:
    """Write a measured profile in one step, so that a reader finds the old one or the new one. Raises `OSError`."""
    assert profile.contract
    folder.mkdir(parents=True, exist_ok=True)
    path = profile_path(folder, profile.contract)
    write_atomically(path, profile.model_dump_json(indent=2, by_alias=True) + "\n")
    return path


def engine_profile(folder: Path, engine: str) -> Profile | None:
    """The newest measured profile that an engine had a part in; None when there is none. Raises `ProfileError`.

    For a simulation, which has no running engine to ask for its contract.
    """
    found = [load_profile(str(path)) for path in sorted(folder.glob("*.json"))]
    measured = [(profile.measured.at, profile) for profile in found if profile.measured is not None]
    mine = [pair for pair in measured if pair[1].measured is not None and engine in pair[1].measured.engines]
    return max(mine, key=lambda pair: pair[0])[1] if mine else None


def stored_profile(folder: Path, contract: str) -> Profile | None:
    """The measured profile of a contract; None when it was not measured. Raises `ProfileError` for a broken file."""
    path = profile_path(folder, contract)
    return load_profile(str(path)) if path.is_file() else None
