"""Reading the secrets that a fleet file only names."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from narwhal.fleet.model import Secret, SecretFromEnv

_FORBIDDEN = stat.S_IRWXO | stat.S_IWGRP
"""Nobody else may read a secret, and no group may change it; a group that may read it is the operator's choice."""


class SecretError(Exception):
    """A secret cannot be had; the message names its key, its place and the next step, never its text."""


def read_secret(secret: Secret, key: str, environ: Mapping[str, str] = os.environ) -> str:
    """The text of a secret, without its last newline. `key` names it in errors. Raises `SecretError`."""
    if isinstance(secret, SecretFromEnv):
        value = environ.get(secret.env, "")
        if not value:
            raise SecretError(f"{key}: the environment variable {secret.env} is not set, or empty; set it")
        return value
    path = Path(secret.file)
    require_private(path, key)
    try:
        value = path.read_text().removesuffix("\n")
    except OSError as error:
        raise SecretError(f"{key}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SecretError(f"{key}: {path} is not text") from None
    if not value:
        raise SecretError(f"{key}: {path} is empty; write the secret into it")
    return value


def require_private(path: Path, key: str) -> None:
    """Refuse a file that others can read or a group can write, as sshd does. Raises `SecretError`."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise SecretError(f"{key}: cannot read {path}: {error.strerror}") from None
    if mode & _FORBIDDEN:
        said = f"{key}: {path} has mode {stat.S_IMODE(mode):04o}: other users can read it or a group can write it"
        raise SecretError(f"{said}; run `chmod 640 {path}`")
