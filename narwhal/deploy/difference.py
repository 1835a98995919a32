"""What a change of the fleet file would change on which host, told from what was rendered last."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from narwhal.deploy.directory import Changes, changes
from narwhal.deploy.manifest import MANIFEST
from narwhal.deploy.opening import Opened

EVERY_HOST = "every host"
HERE = "this machine"
_NOT_TOLD = (MANIFEST, ".ansible-lint", ".gitignore")


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file of the run directory that would change."""

    path: str
    kind: str
    """`added`, `changed` or `removed`."""
    lines: tuple[str, ...]
    """Its difference, lines with `-` and `+`; none for a playbook or role."""


def differences(opened: Opened) -> dict[str, list[FileChange]]:
    """Files that would change, by host, by `EVERY_HOST`, or `HERE` for what only the operator's machine reads."""
    planned = changes(opened.wanted, opened.directory)
    found: dict[str, list[FileChange]] = {}
    for kind, paths in (("added", planned.added), ("changed", planned.changed), ("removed", planned.removed)):
        for path in paths:
            if path not in _NOT_TOLD:
                change = FileChange(path, kind, tuple(_lines(opened, planned, path)))
                for place in _places(opened, path):
                    found.setdefault(place, []).append(change)
    return dict(sorted(found.items(), key=lambda item: _rank(opened, item[0])))


def text_of(found: Mapping[str, list[FileChange]]) -> str:
    """The differences as people read them; files of a host that change alike stand together."""
    lines = []
    for place, files in found.items():
        lines.append(place)
        alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for change in files:
            alike.setdefault((change.kind, change.lines), []).append(change.path)
        for (kind, differing), paths in alike.items():
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            lines.append(f"  {kind}: {paths[0]}{more}")
            lines += [f"    {line}" for line in differing]
    return "\n".join(lines)


def _places(opened: Opened, path: str) -> list[str]:
    hosts = [host.name for host in opened.wanted.fleet.hosts]
    if path.startswith("host_vars/"):
        return [path.removeprefix("host_vars/").removesuffix(".yml")]
    if path.startswith("files/launch/"):
        return [path.removeprefix("files/launch/").rpartition("-")[0]]
    if path == "files/fleet.yaml":
        routers = {router.host for router in opened.wanted.expanded.routers}
        return [host for host in hosts if host in routers]
    if path in ("inventory.yml", "known_hosts", "ansible.cfg") or path.startswith("callback_plugins/"):
        return [HERE]
    return [EVERY_HOST]


def _rank(opened: Opened, place: str) -> tuple[int, int]:
    """Hosts in the order of the fleet file, then those that are gone, then all, then this machine."""
    hosts = [host.name for host in opened.wanted.fleet.hosts]
    if place in hosts:
        return 0, hosts.index(place)
    return {EVERY_HOST: 2, HERE: 3}.get(place, 1), 0


def _lines(opened: Opened, planned: Changes, path: str) -> Iterator[str]:
    if path.startswith(("roles/", "callback_plugins/")) or _is_playbook(path):
        return
    place = opened.directory / path
    before = place.read_text(errors="replace").splitlines() if place.is_file() else []
    after = planned.files[path].decode(errors="replace").splitlines() if path in planned.files else []
    if not before or not after:  # its coming or going says enough
        return
    for line in difflib.unified_diff(before, after, n=0, lineterm=""):
        if not line.startswith(("---", "+++", "@@")):
            yield line


def _is_playbook(path: str) -> bool:
    return "/" not in path and path.endswith(".yml") and path != "inventory.yml"
