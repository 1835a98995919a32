"""The `RenderManifest` document: every file that was rendered, and what it came from."""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

import narwhal
from narwhal.deploy.content import Wanted
from narwhal.documents import Document, Model
from narwhal.fleet.model import Digest, Text

MANIFEST = "MANIFEST.json"


class RenderedFile(Model):
    """One file."""

    path: Text
    """Path in the directory."""
    digest: Digest
    """SHA-256 of its bytes."""
    source: Literal["fleet", "playbooks"]
    """`fleet`: written from the fleet file, by what `from` names; `playbooks`: copied as this version ships it."""


class RenderSources(Model):
    """What the directory was rendered from."""

    fleet: Digest
    """Digest of the fleet file's meaning."""
    fleet_text: Digest
    """SHA-256 of the fleet file's text."""
    revision: str | None
    """The approved bundle, from `metadata.revision`."""
    addresses: dict[str, str]
    """Fabric addresses that gate A found, by host, where the fleet file names none."""
    host_keys: Digest
    """SHA-256 of `known_hosts`."""
    playbooks: Digest
    """Digest of all playbooks and roles."""


class RenderManifest(Document):
    """All that `narwhal render` wrote into a directory."""

    kind: Literal["RenderManifest"]
    """This is a manifest of a rendered directory."""
    fleet: Text
    """Name of the fleet."""
    narwhal: Text
    """Version that rendered it."""
    sources: Annotated[RenderSources, Field(alias="from")]
    """What it was rendered from."""
    files: list[RenderedFile]
    """Every file but this one, by path."""

    def text(self) -> str:
        """The document as it is written."""
        return self.model_dump_json(by_alias=True, indent=2) + "\n"

    def digests(self) -> dict[str, str]:
        """Digest of each file, by path."""
        return {file.path: file.digest for file in self.files}


def digest(data: bytes | str) -> str:
    """SHA-256, as `sha256:…`."""
    return "sha256:" + hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def tree_of(files: Mapping[str, bytes]) -> str:
    """One digest for some files: their paths and contents."""
    return digest("".join(f"{path}\0{digest(data)}\n" for path, data in sorted(files.items())))


def manifest_of(wanted: Wanted, files: Mapping[str, bytes], static: Mapping[str, bytes]) -> RenderManifest:
    """The manifest of rendered files; `static`: those of them that are copied."""
    metadata = wanted.fleet.metadata
    return RenderManifest(
        kind="RenderManifest",
        fleet=metadata.name,
        narwhal=narwhal.__version__,
        sources=RenderSources(
            fleet=wanted.fleet.digest(),
            fleet_text=digest(wanted.text),
            revision=metadata.revision,
            addresses=dict(sorted(wanted.addresses.items())),
            host_keys=digest(files["known_hosts"]),
            playbooks=tree_of(static),
        ),
        files=[
            RenderedFile(path=path, digest=digest(data), source="playbooks" if path in static else "fleet")
            for path, data in files.items()
        ],
    )
