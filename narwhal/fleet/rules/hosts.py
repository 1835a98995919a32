"""NW010 to NW016: hosts, their addresses, and the fabric."""

from collections.abc import Iterator
from ipaddress import ip_address
from urllib.parse import urlsplit

from narwhal.fleet.draft import known, written
from narwhal.fleet.facts import Facts
from narwhal.fleet.rules.rule import Hit, rule
from narwhal.fleet.suggest import did_you_mean, one_of


@rule(
    "NW010",
    "two hosts of one name",
    means="Engines are called after their host, so its name must be its own.",
    fix="Rename one of the two.",
)
def host_names_differ(facts: Facts) -> Iterator[Hit]:
    """Every host has a name of its own."""
    seen: dict[str, int] = {}
    for host in facts.hosts:
        if host.name in seen:
            text = f"host {host.name!r} is also the name of hosts[{seen[host.name]}]"
            yield Hit((*host.path, "name"), text, "a name that no other host has", host.name)
        seen.setdefault(host.name, int(host.path[-1]))


@rule(
    "NW011",
    "two hosts at one address",
    means="Two hosts would be the same machine, and its engines would be started twice.",
    fix="Give each host its own address, or make them one host.",
)
def host_addresses_differ(facts: Facts) -> Iterator[Hit]:
    """No two hosts share an SSH address and port, or a fabric address."""
    seen: dict[tuple[str, str], str] = {}
    for host in facts.hosts:
        fabric = known(lambda h: h.host.fabric.address, host)
        ssh = known(lambda h: f"{h.host.ssh.address}:{h.host.ssh.port}" if h.host.ssh else None, host)
        for kind, value in (("ssh", ssh), ("fabric", fabric)):
            if value is None:
                continue
            if (kind, value) in seen:
                text = f"{kind} address {value} is also that of host {seen[kind, value]!r}"
                yield Hit((*host.path, kind, "address"), text, "an address of its own", value)
            seen.setdefault((kind, value), host.name)


@rule(
    "NW012",
    "unknown host",
    means="A router is placed on a host that the file does not list.",
    fix="Name one of the hosts, or add it.",
)
def routers_are_on_hosts(facts: Facts) -> Iterator[Hit]:
    """Primary and standby name hosts of the file."""
    if not facts.hosts_complete:
        return
    names = list(dict.fromkeys(host.name for host in facts.hosts))
    for key in ("primary", "standby"):
        name = known(lambda k: getattr(facts.fleet.routers, k), key)
        if name is not None and name not in names:
            near = did_you_mean(name, names)
            hint = f"did you mean `{near}`?" if near else None
            yield Hit(("routers", key), f"there is no host {name!r}", f"one of {one_of(names)}", name, hint)


@rule(
    "NW013",
    "unknown engine",
    means="An override is for an engine that the fleet does not have, so it would never take effect.",
    fix="Name an engine of the fleet (`narwhal show --engines` lists them), or declare more.",
)
def overrides_name_engines(facts: Facts) -> Iterator[Hit]:
    """Each override names an engine that the file expands to."""
    facts.engine_total()
    ids = [engine.id for engine in facts.engines]
    for id_ in facts.fleet.engines.overrides:
        if id_ not in ids:
            near = did_you_mean(id_, ids)
            hint = f"did you mean `{near}`?" if near else None
            path = ("engines", "overrides", id_)
            yield Hit(path, f"there is no engine {id_!r}", f"one of {one_of(ids)}", id_, hint, key=True)


@rule(
    "NW014",
    "host without address in a fleet of several",
    means="A host without `ssh` and fabric address is reached over loopback, which other hosts cannot use.",
    fix="Give the host `ssh`, or an address on the fabric.",
)
def hosts_can_be_reached(facts: Facts) -> Iterator[Hit]:
    """With several hosts, each has an address that is not loopback."""
    if len(facts.hosts) < 2:
        return
    for host in facts.hosts:
        if host.address is not None and is_loopback(host.address):
            text = f"host {host.name!r} is at {host.address}, which other hosts cannot reach"
            path = (*host.path, "fabric", "address") if written(host.host, "fabric") else host.path
            yield Hit(path, text, "an address that its peers can reach", host.address)


@rule(
    "NW015",
    "route that leaves the fabric",
    means="Some hosts say where their fabric is and this one does not: its traffic would take another network.",
    fix="Give the host `fabric: {interface: …}` or `fabric: {address: …}`; router hosts need one too.",
)
def hosts_that_work_have_a_fabric(facts: Facts) -> Iterator[Hit]:
    """When one host names its fabric, every host with engines or a router does."""
    named = {h.name for h in facts.hosts if known(lambda h: h.host.fabric.interface or h.host.fabric.address, h)}
    routers = {known(lambda k: getattr(facts.fleet.routers, k), k) for k in ("primary", "standby")}
    for host in facts.hosts:
        unknown = known(lambda h: h.host.fabric.interface or h.host.fabric.address or "", host) is None
        busy = host.name in routers or known(lambda h: facts.count(h) > 0, host)
        if named and busy and not unknown and host.name not in named:
            text = f"host {host.name!r} has no fabric, and {one_of(named)} have"
            yield Hit(host.path, text, "a fabric interface or address", None)


@rule(
    "NW016",
    "engine URL off its host's fabric",
    means="An engine's URL names another address than its host's, so requests would leave the fabric.",
    fix="Use the host's fabric address, or leave the URL out.",
)
def engine_urls_stay_on_the_fabric(facts: Facts) -> Iterator[Hit]:
    """An engine's own URL is at its host's address."""
    for engine in facts.engines:
        url = known(lambda e: e.override.url, engine)
        place = known(lambda u: urlsplit(u or "").hostname, url) if is_url(url) else None
        if engine.override_path is None or place is None or engine.host.address in (None, place):
            continue
        text = f"{url} is not at {engine.host.address}, the address of host {engine.host.name!r}"
        yield Hit((*engine.override_path, "url"), text, f"a URL at {engine.host.address}", url)


def is_url(value: object) -> bool:
    """Whether a value is an absolute http or https URL of a server: no path, query or credentials."""
    if not isinstance(value, str) or any(c.isspace() for c in value):
        return False
    try:
        parts = urlsplit(value)
        port_ok = parts.port != 0
    except ValueError:
        return False
    bare = parts.path in ("", "/") and not parts.query and not parts.fragment and parts.username is None
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port_ok and bare


def is_loopback(address: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
