"""Approving a bundle: its digest becomes the fleet's revision."""

from narwhal.deploy.bundle import file_digest
from narwhal.deploy.errors import DeployError
from narwhal.deploy.fleetfile import with_revision
from narwhal.deploy.frozen import write_frozen
from narwhal.deploy.opening import Opened, open_run
from narwhal.documents import write_atomically


def approve(opened: Opened, revision: str, *, write: bool, deployed: bool) -> str:
    """Write a revision where it belongs, and say what was done or is left to do.

    `write`: into the fleet file. Else a fleet file without a revision of its own gets it from `frozen.json` when the
    bundle lies where `deploy` looks (`deployed`).
    """
    given = opened.declared.metadata.revision
    if given == revision:
        return f"{opened.file} approves it already"
    if write:
        mode = opened.file.stat().st_mode & 0o777
        write_atomically(opened.file, with_revision(opened.text, revision), mode=mode)
        return f"{opened.file}: metadata.revision is written; `narwhal diff {opened.file}` says what follows"
    if given is None and deployed:
        write_frozen(opened.directory, opened.frozen.model_copy(update={"revision": revision}))
        return f"{opened.file} names no revision, so `narwhal deploy` takes this one; --write approves it in the file"
    return f"not approved yet: write `revision: {revision}` into metadata of {opened.file}, or give --write"


def check_bundle(opened: Opened) -> None:
    """Refuse a bundle that is not the approved one. Raises `DeployError`."""
    wanted = opened.wanted.fleet.metadata.revision
    if not opened.bundle.exists():
        hint = f"narwhal package {opened.file}, or copy the approved bundle there"
        raise DeployError("bundle", "there is no bundle", file=str(opened.bundle), hint=hint)
    found = file_digest(opened.bundle)
    if found != wanted:
        hint = f"copy the approved bundle there, or approve this one: narwhal package {opened.file} --write"
        raise DeployError("bundle", f"it is {found}; approved is {wanted}", file=str(opened.bundle), hint=hint)


def reopened(opened: Opened) -> Opened:
    """The same run, read again; a fleet file that says something else by now is refused. Raises `DeployError`."""
    now = open_run(opened.file, opened.directory)
    if now.text != opened.text:
        hint = "run the command again: what it says now is planned anew"
        raise DeployError("changed", "it was changed while it was deployed", file=str(opened.file), hint=hint)
    return now
