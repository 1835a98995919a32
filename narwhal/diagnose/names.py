"""Which names and secrets a bundle may meet: those of the fleet file, of this machine, and of what was collected."""

import getpass
import ipaddress
import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from narwhal.diagnose.redact import NOT_SECRET, SENSITIVE_KEY

_ENGINE = re.compile(r"([a-z0-9][a-z0-9-]*)/[0-9]{1,3}(?:/attest)?")
_LEAST_SECRET = 6
"""Characters of a variable's value that may be a secret; a shorter one is a switch or a number."""
_SECRET_BYTES = 65536


def names_in(document: Any) -> dict[str, str]:
    """Names in what was collected, by kind: hosts of engines' ids, tenants, the fleet."""
    found: dict[str, str] = {}
    for key, value in _strings(document):
        if (engine := _ENGINE.fullmatch(value)) is not None:
            found[engine[1]] = "host"
        elif key in ("tenant", "fleet"):
            found[value] = key
    if isinstance(document, Mapping):
        tenants = document.get("tenants")
        found |= {each["name"]: "tenant" for each in tenants or () if isinstance(each, Mapping) and "name" in each}
    return found


def names_of_fleet(data: Any) -> dict[str, str]:
    """Names in a fleet file, by kind; in whatever of it can be read."""
    if not isinstance(data, Mapping):
        return {}
    found = names_in(data)
    meta, routers, engines = (_part(data, name) for name in ("metadata", "routers", "engines"))
    found |= {str(meta.get("name", "")): "fleet"} | {str(value): "label" for value in _part(meta, "labels").values()}
    for host in _rows(data, "hosts"):
        ssh = _part(host, "ssh")
        found |= {
            str(host.get("name", "")): "host",
            str(ssh.get("user", "")): "user",
            str(ssh.get("address", "")): "host",
        }
    for tenant in _rows(routers, "tenants"):
        found[str(tenant.get("name", ""))] = "tenant"
    for token in _rows(_part(routers, "admin"), "tokens"):
        found[str(token.get("name", ""))] = "caller"
    found[str(_part(engines, "tls").get("server_name", ""))] = "host"
    for _, value in _strings(data):
        if "://" in value:
            found[urlsplit(value).hostname or ""] = "host"
    return {name: kind for name, kind in found.items() if name and not _is_address(name)}


def names_of_machine() -> dict[str, str]:
    """Names of the machine it runs on, and of its user."""
    found = {socket.gethostname(): "host", socket.gethostname().partition(".")[0]: "host"}
    try:
        found[getpass.getuser()] = "user"
    except (KeyError, OSError):
        found.pop("", None)
    return found


def secrets_of_fleet(data: Any, environ: Mapping[str, str] = os.environ) -> set[str]:
    """The secrets that a fleet file names, as far as they can be read here; and what engines' variables hold."""
    found: set[str] = set()
    for key, value in _strings(data):
        if key == "env" and value in environ:
            found.add(environ[value])
        elif key == "file":
            found |= _lines_of(Path(value))
    variables = _part(_part(data, "engines"), "env") if isinstance(data, Mapping) else {}
    return found | {value for value in variables.values() if isinstance(value, str) and len(value) >= _LEAST_SECRET}


def secrets_of_machine(environ: Mapping[str, str] = os.environ) -> set[str]:
    """Values of this process's variables whose names say that they are secrets."""
    return {
        value
        for name, value in environ.items()
        if len(value) >= _LEAST_SECRET and SENSITIVE_KEY.fullmatch(name) and not NOT_SECRET.fullmatch(name)
    }


def _lines_of(path: Path) -> set[str]:
    try:
        with path.open(errors="replace") as file:
            text = file.read(_SECRET_BYTES)
    except (OSError, ValueError):
        return set()
    return {text, *(line for line in text.splitlines() if len(line.strip()) >= _LEAST_SECRET)} - {""}


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every string of a document with the key it stands under."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield ("", str(name))
            yield from _strings(each, str(name))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _strings(each, key)
    elif isinstance(value, str):
        yield key, value


def _part(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = data.get(name)
    return found if isinstance(found, Mapping) else {}


def _rows(data: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = data.get(name)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("/")[0])
    except ValueError:
        return False
    return True
