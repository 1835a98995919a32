"""Finding profiles: the shipped ones by name, others by path."""

import json
from pathlib import Path

from pydantic import ValidationError

from narwhal.documents import data_path
from narwhal.fleet.profile import Profile


class ProfileError(ValueError):
    """A profile that is not there or cannot be used; the message says which, why, and what there is."""


def profile_names() -> list[str]:
    """Names of the shipped profiles, sorted."""
    return sorted(path.stem for path in data_path("templates", "profiles").glob("*.json"))


def load_profile(name_or_path: str) -> Profile:
    """The profile of a shipped name (`demo`, `8b-h100`, …) or of a JSON file.

    A value with a slash or the suffix `.json` is a path. Raises `ProfileError`.
    """
    path = _profile_path(name_or_path)
    try:
        return Profile.model_validate(json.loads(path.read_text()))
    except OSError as error:
        raise ProfileError(f"profile {name_or_path}: cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "document"
        raise ProfileError(f"profile {path}: {place}: {first['msg']}") from error
    except ValueError as error:
        raise ProfileError(f"profile {path}: not JSON: {error}") from error


def _profile_path(name_or_path: str) -> Path:
    if "/" in name_or_path or name_or_path.endswith(".json"):
        return Path(name_or_path)
    if name_or_path not in profile_names():
        raise ProfileError(
            f"no shipped profile is called {name_or_path!r}; there are {', '.join(profile_names())}, "
            "and a path of one's own must hold a slash or end in .json"
        )
    return data_path("templates", "profiles", f"{name_or_path}.json")
