"""The whole fleet file."""

import hashlib
import json
from typing import Annotated, Literal

from pydantic import Field

from narwhal.documents import Document
from narwhal.fleet.model.benchmark import Points
from narwhal.fleet.model.controller import Controller
from narwhal.fleet.model.engines import Engines, Split
from narwhal.fleet.model.recovery import Recovery
from narwhal.fleet.model.routers import FileLease, Lease, Routers
from narwhal.fleet.model.serving import Observability, Profiles, Serving
from narwhal.fleet.model.sites import Host, Metadata, ModelSpec, Slo


class Fleet(Document):
    """A fleet of engines that serves one model with prefill and decode apart."""

    kind: Literal["Fleet"]
    """This is a fleet."""
    metadata: Metadata
    """Name and revision."""
    model: ModelSpec
    """What is served."""
    slo: Slo
    """What clients are promised."""
    hosts: Annotated[list[Host], Field(min_length=1)]
    """The machines."""
    engines: Engines
    """The engines."""
    split: Split
    """How many engines hold each role at the start."""
    routers: Routers
    """The routers."""
    lease: Lease = Field(default_factory=lambda: FileLease(backend="file"))
    """How a router proves that it is the active one."""
    serving: Serving = Field(default_factory=Serving)
    """Admission, placement, deadlines."""
    controller: Controller = Field(default_factory=Controller)
    """The role controller."""
    recovery: Recovery = Field(default_factory=Recovery)
    """Failure handling."""
    profiles: Profiles = Field(default_factory=Profiles)
    """Engine speeds."""
    observability: Observability = Field(default_factory=Observability)
    """Journal and logs."""
    benchmark: Points | None = None
    """Points that `narwhal bench` measures; nothing that serves reads them."""

    def digest(self) -> str:
        """SHA-256 of what the file says of the fleet.

        Comments, order of keys, spelled-out defaults and benchmark points make no difference.
        """
        text = json.dumps(self.model_dump(mode="json", by_alias=True, exclude={"benchmark"}), sort_keys=True)
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
