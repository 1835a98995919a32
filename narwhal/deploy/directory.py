"""Writing a rendered directory: over what was rendered before, never over what somebody wrote by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from narwhal.deploy.content import Wanted, render_files, static_files
from narwhal.deploy.errors import DeployError
from narwhal.deploy.manifest import MANIFEST, RenderManifest, digest, manifest_of
from narwhal.documents import write_atomically


@dataclass(frozen=True, slots=True)
class Changes:
    """What rendering does to a directory, by path in it."""

    files: Mapping[str, bytes]
    """What is to be there, `MANIFEST.json` included."""
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    """Files that it wrote once and that nothing asks for now."""
    by_hand: tuple[str, ...]
    """Files in its way that were changed, or written, by somebody else."""

    @property
    def none(self) -> bool:
        """Whether the directory is as it should be."""
        return not (self.added or self.changed or self.removed)


def changes(wanted: Wanted, directory: Path) -> Changes:
    """What rendering would do to a directory. Raises `DeployError` for a manifest that cannot be read."""
    static = static_files()
    files = render_files(wanted)
    manifest = manifest_of(wanted, files, static)
    files[MANIFEST] = manifest.text().encode()
    before = read_manifest(directory)
    written = before.digests() if before else {}
    added, changed, by_hand = [], [], []
    for path, data in files.items():
        found = _read(directory / path)
        if found is None:
            added.append(path)
        elif found != data:
            changed.append(path)
            if path != MANIFEST and written.get(path) != digest(found):
                by_hand.append(path)
    removed = [path for path in written if path not in files and (directory / path).exists()]
    by_hand += [path for path in removed if written[path] != digest((directory / path).read_bytes())]
    return Changes(files, tuple(added), tuple(changed), tuple(removed), tuple(sorted(by_hand)))


def write_directory(directory: Path, planned: Changes, *, force: bool = False) -> Sequence[str]:
    """Make a directory what it should be; says which hand-edited files it wrote over, which it only does by `force`.

    Raises `DeployError` when there are any and it is not forced; nothing is written then.
    """
    if planned.by_hand and not force:
        listed = ", ".join(planned.by_hand)
        raise DeployError(
            "hand_edited",
            f"{listed}: changed since `narwhal render` wrote {'it' if len(planned.by_hand) == 1 else 'them'}",
            file=str(directory),
            hint="say it in the fleet file, or in a file of another name in group_vars/ or host_vars/; "
            "--force writes over it",
        )
    directory.mkdir(parents=True, exist_ok=True)
    for path in (*planned.added, *planned.changed):
        if path != MANIFEST:
            _write(directory / path, planned.files[path])
    for path in planned.removed:
        _remove(directory, path)
    if MANIFEST in planned.added or MANIFEST in planned.changed:
        _write(directory / MANIFEST, planned.files[MANIFEST])
    return planned.by_hand


def read_manifest(directory: Path) -> RenderManifest | None:
    """The manifest of a rendered directory; None when nothing was rendered there. Raises `DeployError`."""
    path = directory / MANIFEST
    try:
        return RenderManifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        hint = "restore it from version control, or render into another directory"
        raise DeployError("manifest", f"it is no RenderManifest: {error}", file=str(path), hint=hint) from None


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)


def _remove(directory: Path, path: str) -> None:
    """Remove a file, and the folders that are empty without it."""
    place = directory / path
    place.unlink()
    for folder in place.parents:
        if folder == directory or any(folder.iterdir()):
            return
        folder.rmdir()
