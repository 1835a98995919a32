"""NW040 to NW049: routers, listeners, lease, tenants."""

from collections.abc import Iterator
from ipaddress import ip_interface

from narwhal.fleet.draft import known, written
from narwhal.fleet.facts import Facts
from narwhal.fleet.rules.rule import Hit, rule


@rule(
    "NW040",
    "lock-file lease for two hosts",
    means="A locked file is seen by one host only; two hosts could both believe that their router is the active one.",
    fix="Use `lease: {backend: etcd, endpoints: […]}`, or put the standby on the primary's host.",
)
def file_lease_is_for_one_host(facts: Facts) -> Iterator[Hit]:
    """Routers on two hosts need etcd."""
    routers, lease = facts.fleet.routers, facts.fleet.lease
    if routers.standby is not None and routers.standby != routers.primary and lease.backend == "file":
        text = f"primary and standby are on {routers.primary!r} and {routers.standby!r}, and the lease is a file"
        yield Hit(("lease", "backend"), text, "etcd", "file")


@rule(
    "NW041",
    "standby on the primary's host",
    means="With a lease in etcd the standby is meant to outlive the primary's host, and would fail with it.",
    fix="Put the standby on another host, or use a file lease.",
)
def standby_is_elsewhere(facts: Facts) -> Iterator[Hit]:
    """With etcd, primary and standby are on different hosts, where there are several."""
    routers = facts.fleet.routers
    if routers.standby == routers.primary and facts.fleet.lease.backend == "etcd" and len(facts.hosts) > 1:
        yield Hit(("routers", "standby"), "the standby is on the primary's host", "another host", routers.standby)


@rule(
    "NW042",
    "open admin listener",
    means="Off loopback the admin listener could be used by anyone who reaches it: it holds, moves and drains engines.",
    fix="Give it `tokens` and `tls`, or `bind: loopback`.",
)
def admin_is_guarded(facts: Facts) -> Iterator[Hit]:
    """Off loopback the admin listener has tokens and TLS."""
    admin = facts.fleet.routers.admin
    if admin.bind == "loopback":
        return
    missing = ["tokens"] if known(lambda: len(admin.tokens)) == 0 else []
    missing += ["tls"] if _absent(admin, "tls") else []
    if missing:
        text = f"the admin listener is bound to {admin.bind!r} without {' and '.join(missing)}"
        yield Hit(("routers", "admin", "bind"), text, "tokens and tls, or loopback", admin.bind)


def _absent(part: object, key: str) -> bool:
    """Whether a key is not there; one that is there and broken is not absent."""
    return known(lambda: (getattr(part, key),)) == (None,)


@rule(
    "NW043",
    "virtual IP and front do not agree",
    means="`front: vip` needs a `vip`, and a `vip` has no effect with another front.",
    fix="Write both, or neither.",
)
def vip_and_front_agree(facts: Facts) -> Iterator[Hit]:
    """`vip` is there exactly with `front: vip`."""
    routers = facts.fleet.routers
    vip = not _absent(routers, "vip")
    if routers.front == "vip" and not vip:
        yield Hit(("routers", "front"), "front is vip, and there is no vip", "a vip", "vip", "add `vip:`")
    if vip and routers.front != "vip":
        text = f"there is a vip, and front is {routers.front!r}"
        yield Hit(("routers", "vip"), text, "front: vip", routers.front, "write `front: vip`", key=True)


@rule(
    "NW044",
    "virtual IP that nothing listens on",
    means="The router does not listen on the virtual address unless it listens on all of them.",
    fix="Write `routers.bind: all`.",
)
def vip_is_listened_on(facts: Facts) -> Iterator[Hit]:
    """With a virtual IP the client listener binds all addresses."""
    routers = facts.fleet.routers
    if routers.front == "vip" and routers.bind != "all":
        text = f"front is vip, and the client listener is bound to {routers.bind!r}"
        yield Hit(("routers", "bind"), text, "all", routers.bind)


@rule(
    "NW045",
    "virtual IP that is not one",
    means="The virtual address is not an IP address with its prefix length.",
    fix="Write it as `10.0.0.100/24`.",
)
def vip_is_an_address(facts: Facts) -> Iterator[Hit]:
    """The virtual address is an IP interface with a prefix."""
    vip = facts.fleet.routers.vip
    if vip is None:
        return
    try:
        ip_interface(vip.address)
        good = "/" in vip.address
    except ValueError:
        good = False
    if not good:
        text = f"{vip.address!r} is not an address with a prefix length"
        yield Hit(("routers", "vip", "address"), text, "ADDRESS/PREFIX", vip.address)


@rule(
    "NW046",
    "two tenants of one name",
    means="Requests are counted by tenant, so its name must be its own.",
    fix="Rename one of the two.",
)
def tenant_names_differ(facts: Facts) -> Iterator[Hit]:
    """Every tenant has a name of its own."""
    seen: set[str] = set()
    for i, tenant in enumerate(facts.fleet.routers.tenants):
        name = known(lambda t: t.name, tenant)
        if name is not None and name in seen:
            yield Hit(("routers", "tenants", i, "name"), f"tenant {name!r} is there twice", "a name of its own", name)
        if name is not None:
            seen.add(name)


@rule(
    "NW047",
    "tenant without a key",
    means="Where tenants are declared a request is told by its key; a tenant without one can never be anybody.",
    fix="Give it `keys: [{file: …}]`; `narwhal keys new TENANT` makes one.",
)
def tenants_have_keys(facts: Facts) -> Iterator[Hit]:
    """Every tenant has a key."""
    for i, tenant in enumerate(facts.fleet.routers.tenants):
        if known(lambda t: t.keys, tenant) == []:
            name = known(lambda t: t.name, tenant)
            yield Hit(("routers", "tenants", i), f"tenant {name!r} has no key", "one key, or two while rotating", None)


@rule(
    "NW048",
    "one key for two tenants",
    means="Two keys come from the same place, so a request with it could belong to either.",
    fix="Give each key a file or variable of its own.",
)
def tenant_keys_differ(facts: Facts) -> Iterator[Hit]:
    """No two keys are read from the same place."""
    seen: dict[tuple[str, str], str] = {}
    for i, tenant in enumerate(facts.fleet.routers.tenants):
        name = known(lambda t: t.name, tenant) or f"tenants[{i}]"
        for j, key in enumerate(known(lambda t: t.keys, tenant) or []):
            place = secret_place(key)
            if place is None:
                continue
            if place in seen:
                text = f"{place[0]} {place[1]} is also a key of tenant {seen[place]!r}"
                yield Hit(("routers", "tenants", i, "keys", j), text, "a place of its own", place[1])
            seen.setdefault(place, name)


def secret_place(secret: object) -> tuple[str, str] | None:
    """Where a secret is read from, as (`env` or `file`, name); None when the file is broken there."""
    for kind in ("env", "file"):
        if written(secret, kind):
            name = known(lambda k: getattr(secret, k), kind)
            return None if name is None else (kind, str(name))
    return None


@rule(
    "NW049",
    "endpoint twice",
    means="The same etcd member is listed twice, so losing it would count as losing two.",
    fix="List each member once.",
)
def endpoints_differ(facts: Facts) -> Iterator[Hit]:
    """Every etcd endpoint is listed once."""
    lease = facts.fleet.lease
    if lease.backend != "etcd":
        return
    seen: set[str] = set()
    for i, url in enumerate(lease.endpoints):
        if url.rstrip("/") in seen:
            yield Hit(("lease", "endpoints", i), f"{url} is listed twice", "each member once", url)
        seen.add(url.rstrip("/"))
