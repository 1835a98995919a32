"""NW020 to NW029: engines, their ports, GPUs and launch arguments."""

from collections import defaultdict
from collections.abc import Iterator

from narwhal.fleet.draft import known
from narwhal.fleet.facts import EngineFact, Facts
from narwhal.fleet.finding import Path
from narwhal.fleet.rules.hosts import is_url
from narwhal.fleet.rules.rule import Hit, rule
from narwhal.fleet.suggest import counted

DEFAULT_MEMORY_SHARE = 0.9
"""vLLM's own `gpu_memory_utilization`."""
OWN_ARGS = frozenset(
    [
        "host",
        "port",
        "model",
        "served-model-name",
        "tensor-parallel-size",
        "max-model-len",
        "max-num-seqs",
        "max-num-batched-tokens",
        "kv-transfer-config",
        "api-key",
    ]
)
"""Arguments that Narwhal gives an engine from other keys of the file."""
OWN_ENV = frozenset({"VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT", "CUDA_VISIBLE_DEVICES"})
"""Environment that Narwhal gives an engine from other keys of the file."""


@rule(
    "NW020",
    "not a URL",
    means="A value that must be the URL of a server is not one.",
    fix="Write `http://HOST:PORT` or `https://HOST:PORT`, without path, query or credentials.",
)
def urls_are_urls(facts: Facts) -> Iterator[Hit]:
    """Engine URLs and lease endpoints are absolute http URLs of servers."""
    places: list[tuple[Path, object]] = []
    for id_, override in (known(lambda: facts.fleet.engines.overrides) or {}).items():
        places.append((("engines", "overrides", id_, "url"), known(lambda o: o.url, override)))
    lease = known(lambda: facts.fleet.lease)
    if lease is not None and known(lambda: lease.backend == "etcd"):
        endpoints = known(lambda: list(getattr(lease, "endpoints"))) or []  # noqa: B009 - a draft has no narrowing
        places += [(("lease", "endpoints", i), url) for i, url in enumerate(endpoints)]
    for path, url in places:
        if url is not None and not is_url(url):
            yield Hit(path, f"{url!r} is not the URL of a server", "http://HOST:PORT or https://HOST:PORT", url)


@rule(
    "NW021",
    "two listeners on one port",
    means="Two servers of one host would bind the same port, and the second would not start.",
    fix="Move one of them: `port_base`, `side_channel_port_base`, `attest_port_base`, an override, or the router's "
    "ports: `routers.port`, `routers.admin.port`, and with a standby on the same host `routers.standby_port` and "
    "`routers.admin.standby_port`.",
)
def ports_differ(facts: Facts) -> Iterator[Hit]:
    """HTTP, side-channel, sidecar, router and admin ports of a host differ."""
    for host in facts.hosts:
        taken: dict[int, str] = {}
        for port, what, path in [*_router_ports(facts, host.name), *_engine_ports(facts, host.name)]:
            if port in taken:
                text = f"port {port} of {what} is also that of {taken[port]} on host {host.name!r}"
                yield Hit(path, text, "a port that nothing else on the host has", port)
            taken.setdefault(port, what)


def _router_ports(facts: Facts, host: str) -> Iterator[tuple[int, str, Path]]:
    routers = facts.fleet.routers
    primary, standby = host == known(lambda: routers.primary), host == known(lambda: routers.standby)
    port, admin = known(lambda: routers.port), known(lambda: routers.admin.port)
    own, own_admin = known(lambda: routers.standby_port), known(lambda: routers.admin.standby_port)
    if port is not None and (primary or (standby and own is None)):
        yield port, "the router", ("routers", "port")
    if own is not None and standby:
        yield own, "the standby", ("routers", "standby_port")
    if admin is not None and primary:
        yield admin, "the router's admin listener", ("routers", "admin", "port")
    if standby and (own_admin or admin) is not None:
        path = ("routers", "admin", "standby_port" if own_admin is not None else "port")
        yield own_admin or admin or 0, "the standby's admin listener", path


def _engine_ports(facts: Facts, host: str) -> Iterator[tuple[int, str, Path]]:
    for engine in facts.engines:
        if engine.host.name != host:
            continue
        if engine.port is not None:
            key = "url" if known(lambda e: e.override.url, engine) else "port"
            yield engine.port, f"engine {engine.id}", engine.path(key, ("engines", "port_base"))
        if engine.side_channel_port is not None:
            path = engine.path("side_channel_port", ("engines", "side_channel_port_base"))
            yield engine.side_channel_port, f"the side channel of {engine.id}", path
        if engine.attest_port is not None:
            path = engine.path("attest_port", ("engines", "attest_port_base"))
            yield engine.attest_port, f"the sidecar of {engine.id}", path


@rule(
    "NW022",
    "port beyond 65535",
    means="The ports that follow from a base run out of the range of ports.",
    fix="Choose a lower base.",
)
def ports_exist(facts: Facts) -> Iterator[Hit]:
    """No engine's port exceeds 65535; said once for each base."""
    said = set()
    for engine in facts.engines:
        ports = {
            "port_base": engine.port,
            "side_channel_port_base": engine.side_channel_port,
            "attest_port_base": engine.attest_port,
        }
        for key, port in ports.items():
            if port is not None and port > 65535 and key not in said:
                said.add(key)
                text = f"engine {engine.id} would have port {port}"
                yield Hit(("engines", key), text, "at most 65535 for the last engine", port)


@rule(
    "NW023",
    "more engines than the GPUs carry",
    means="A host declares more engines than its GPUs carry with `per_gpu` engines on each.",
    fix="Lower the host's `engines`, or raise `engines.per_gpu`.",
)
def engines_fit_the_gpus(facts: Facts) -> Iterator[Hit]:
    """A host's own count of engines is at most what `per_gpu` allows."""
    engines = facts.fleet.engines
    for host in facts.hosts:
        count, gpus = known(lambda h: h.host.engines, host), known(lambda h: h.host.gpus, host)
        if not gpus or count is None or gpus < engines.tensor_parallel:
            continue
        room = gpus // engines.tensor_parallel * engines.per_gpu
        if count > room:
            text = f"host {host.name!r} has {counted(count, 'engine')}, and room for {room} on {counted(gpus, 'GPU')}"
            yield Hit((*host.path, "engines"), text, f"at most {room}", count)


@rule(
    "NW024",
    "GPU that the host lacks",
    means="An engine is given a GPU whose index the host does not have, or the same one twice.",
    fix="Use each index from 0 to the host's `gpus` - 1 at most once.",
)
def gpu_indices_exist(facts: Facts) -> Iterator[Hit]:
    """The GPUs of an override exist on its host, each once."""
    for engine in facts.engines:
        own, gpus = known(lambda e: e.override.gpus, engine), known(lambda e: e.host.host.gpus, engine)
        if own is None or gpus is None or engine.override_path is None:
            continue
        for i, gpu in enumerate(own):
            if gpu >= gpus or gpu in own[:i]:
                fault = "twice" if gpu in own[:i] else f"which host {engine.host.name!r} does not have"
                text = f"engine {engine.id} is given GPU {gpu}, {fault}"
                yield Hit((*engine.override_path, "gpus", i), text, f"different indices below {gpus}", gpu)


@rule(
    "NW025",
    "memory shares above the card",
    means="The engines of one GPU would together take more memory than it has.",
    fix="Lower `gpu_memory_utilization`, or give the engines `kv-cache-memory-bytes`.",
)
def memory_shares_fit(facts: Facts) -> Iterator[Hit]:
    """On each GPU the shares of its engines add up to 1 at most."""
    if facts.simulated:
        return
    cards: dict[tuple[str, int], list[EngineFact]] = defaultdict(list)
    for engine in facts.engines:
        for gpu in engine.gpus or ():
            cards[engine.host.name, gpu].append(engine)
    said = set()
    for (host, gpu), sharing in cards.items():
        shares = [_memory_share(facts, engine) for engine in sharing]
        path = _share_path(facts, sharing[-1])
        if sum(shares) > 1.0 + 1e-9 and path not in said:
            said.add(path)
            text = f"the {len(sharing)} engines on GPU {gpu} of {host!r} take {sum(shares):.4g} of its memory"
            yield Hit(path, text, f"at most 1 in all: {1 / len(sharing):.2g} each", round(sum(shares), 4))


def _memory_share(facts: Facts, engine: EngineFact) -> float:
    """Share of each of its cards that an engine takes; 0 when sized in bytes on an unknown card."""
    size = _argument(engine, "kv-cache-memory-bytes")
    if size is not None:
        memory = known(lambda: engine.host.host.gpu_memory_gib)
        return float(size) / (memory * 2**30) if memory and isinstance(size, int | float) else 0.0
    share = _argument(engine, "gpu-memory-utilization")
    if share is None:
        share = facts.fleet.engines.gpu_memory_utilization
    return float(share) if isinstance(share, int | float) else DEFAULT_MEMORY_SHARE


def _share_path(facts: Facts, engine: EngineFact) -> Path:
    for key in ("kv-cache-memory-bytes", "gpu-memory-utilization"):
        for spelled in (key, key.replace("-", "_")):
            if spelled in (known(lambda: engine.override.args) or {}) and engine.override_path is not None:
                return (*engine.override_path, "args", spelled)
            if spelled in facts.fleet.engines.args:
                return ("engines", "args", spelled)
    return ("engines", "gpu_memory_utilization")


def _argument(engine: EngineFact, name: str) -> object:
    return engine.args.get(name, engine.args.get(name.replace("-", "_")))


@rule(
    "NW026",
    "tensor parallel beyond the host",
    means="An engine needs `tensor_parallel` GPUs of one host, and does not get them.",
    fix="Lower `engines.tensor_parallel`, or give the engine that many GPUs.",
)
def tensor_parallel_fits(facts: Facts) -> Iterator[Hit]:
    """Every host with GPUs holds one engine at least, and an override gives as many GPUs as an engine uses."""
    width = facts.fleet.engines.tensor_parallel
    for host in facts.hosts:
        gpus = known(lambda h: h.host.gpus, host)
        if gpus and width > gpus and known(lambda h: h.host.engines, host) != 0:
            text = f"tensor_parallel is {width}, and host {host.name!r} has {gpus} GPUs"
            yield Hit(("engines", "tensor_parallel"), text, f"at most {gpus}", width)
    for engine in facts.engines:
        own = known(lambda e: e.override.gpus, engine)
        if own is not None and engine.override_path is not None and len(own) != width:
            text = f"engine {engine.id} is given {counted(len(own), 'GPU')}, and tensor_parallel is {width}"
            yield Hit((*engine.override_path, "gpus"), text, f"{width} GPUs", own)


@rule(
    "NW027",
    "no engines",
    means="The file expands to no engine at all, so nothing could be served.",
    fix="Give a host `gpus` or `engines`.",
)
def there_are_engines(facts: Facts) -> Iterator[Hit]:
    """A fleet has at least one engine."""
    if facts.engine_total() == 0 and facts.hosts:
        yield Hit(("hosts",), "the hosts have neither GPUs nor engines", "at least one engine", 0, key=True)


@rule(
    "NW028",
    "argument that Narwhal sets",
    means="An argument or variable of the engine is set by another key of the file, and the two could differ.",
    fix="Delete it, and use the key of the fleet file instead.",
)
def arguments_are_free(facts: Facts) -> Iterator[Hit]:
    """`args` and `env` hold nothing that other keys decide; arguments stand without dashes."""
    for path, args in _argument_places(facts):
        for name in args:
            bare = name.lstrip("-").replace("_", "-")
            twice = bare == "gpu-memory-utilization" and known(
                lambda: facts.fleet.engines.gpu_memory_utilization is not None
            )
            if bare in OWN_ARGS or twice:
                yield Hit(
                    (*path, name), f"{name!r} is set by Narwhal", "an argument that no other key sets", name, key=True
                )
            elif name.startswith("-"):
                text = f"{name!r} begins with dashes"
                yield Hit((*path, name), text, f"`{name.lstrip('-')}`", name, "leave the dashes out", key=True)
    for name in known(lambda: facts.fleet.engines.env) or {}:
        if name in OWN_ENV:
            text = f"{name} is set by Narwhal"
            yield Hit(("engines", "env", name), text, "a variable that no other key sets", name, key=True)


def _argument_places(facts: Facts) -> Iterator[tuple[Path, dict[str, object]]]:
    yield ("engines", "args"), dict(known(lambda: facts.fleet.engines.args) or {})
    for id_, override in (known(lambda: facts.fleet.engines.overrides) or {}).items():
        yield ("engines", "overrides", id_, "args"), dict(known(lambda o: o.args, override) or {})


@rule(
    "NW029",
    "batch smaller than its requests",
    means="A step must hold at least one token of each request of the batch; the engine refuses to start otherwise.",
    fix="Raise `engines.max_num_batched_tokens`, or lower `engines.max_num_seqs`.",
)
def steps_hold_a_batch(facts: Facts) -> Iterator[Hit]:
    """`max_num_batched_tokens` is at least `max_num_seqs`."""
    engines = facts.fleet.engines
    tokens, seqs = engines.max_num_batched_tokens, engines.max_num_seqs
    if tokens < seqs:
        text = f"max_num_batched_tokens is {tokens}, and max_num_seqs is {seqs}"
        yield Hit(("engines", "max_num_batched_tokens"), text, f"at least {seqs}", tokens)
