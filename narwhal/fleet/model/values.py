"""The words of the fleet file that several sections use: names, ports, durations, secrets."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from narwhal.documents import Model

Role = Literal["prefill", "decode"]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
EngineId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/[0-9]{1,3}$")]
Port = Annotated[int, Field(ge=1, le=65535)]
Text = Annotated[str, StringConstraints(min_length=1)]
Scalar = str | int | float | bool
Seconds = Annotated[float, Field(ge=0)]
PositiveSeconds = Annotated[float, Field(gt=0)]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


class SecretFromEnv(Model):
    """A secret that is read from an environment variable."""

    env: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Name of the environment variable."""


class SecretFromFile(Model):
    """A secret that is read from a file; its last newline is not part of it."""

    file: Text
    """Path of the file, on the host where it is used."""


Secret = SecretFromEnv | SecretFromFile
