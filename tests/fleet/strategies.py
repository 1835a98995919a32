"""Fleet documents that schema and rules accept, for property tests."""

from typing import Any

from hypothesis import strategies as st

_POSITIVE = st.floats(0.1, 100, allow_nan=False).map(lambda x: round(x, 3))


@st.composite
def fleets(draw: st.DrawFn) -> dict[str, Any]:
    """A good fleet: hosts with or without GPUs, pins, overrides, split, floors, routers, lease."""
    simulated = draw(st.booleans())
    width = draw(st.sampled_from([1, 1, 2, 4]))
    per_gpu = draw(st.sampled_from([1, 1, 2]))
    gpu_hosts = draw(
        st.lists(st.sampled_from([width, 2 * width, 3 * width]), min_size=0 if simulated else 1, max_size=3)
    )
    hosts = [_host(f"gpu-{i}", i, gpus=gpus) for i, gpus in enumerate(gpu_hosts)]
    counts = [gpus // width * per_gpu for gpus in gpu_hosts]
    if not gpu_hosts:
        bare = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
        hosts = [_host(f"cpu-{i}", i, engines=n) for i, n in enumerate(bare)]
        counts = bare
    ids = [f"{h['name']}/{i}" for h, n in zip(hosts, counts, strict=True) for i in range(n)]
    hosts.append(_host("edge", 200, engines=0))
    prefill = draw(st.integers(1, len(ids) - 1)) if len(ids) > 1 else 1
    engines: dict[str, Any] = {
        "runtime": {"kind": "simulated", "speed": draw(st.sampled_from([1.0, 2.5]))}
        if simulated
        else {"kind": "venv", "package": "vllm==0.26.0"},
        "per_gpu": per_gpu,
        "tensor_parallel": width,
        "gpu_memory_utilization": 0.9 / per_gpu,
        "overrides": draw(_overrides(ids, prefill)),
    }
    return {
        "apiVersion": "narwhal/v1",
        "kind": "Fleet",
        "metadata": {"name": draw(st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True))},
        "model": {"name": "m", "path": "/models/m"},
        "slo": {"ttft_s": draw(st.sampled_from([0.5, 2.0, 10.0])), "tpot_s": draw(st.sampled_from([0.04, 0.25]))},
        "hosts": hosts,
        "engines": engines,
        "split": {"prefill": prefill, "decode": len(ids) - prefill},
        "routers": draw(_routers(hosts)),
        "controller": {"reactive": draw(_reactive())},
        "serving": {"admission": draw(st.sampled_from(["open", "predictive"])), "margin": draw(_POSITIVE)},
    }


def _host(name: str, i: int, **rest: int) -> dict[str, Any]:
    ssh = {"address": f"10.0.0.{i + 1}", "user": "ops"}
    return {"name": name, "ssh": ssh, "fabric": {"address": f"10.1.0.{i + 1}"}} | rest


@st.composite
def _overrides(draw: st.DrawFn, ids: list[str], prefill: int) -> dict[str, Any]:
    """Pins within the split, with one engine left free, and ports apart from all others."""
    pins = draw(st.lists(st.sampled_from(ids), unique=True, max_size=max(len(ids) - 1, 0)))
    overrides: dict[str, Any] = {}
    room = {"prefill": prefill, "decode": len(ids) - prefill}
    for id_ in pins:
        role = draw(st.sampled_from(["prefill", "decode"]))
        if room[role] > 0:
            room[role] -= 1
            overrides[id_] = {"pin": role}
    for n, id_ in enumerate(draw(st.lists(st.sampled_from(ids), unique=True, max_size=2))):
        overrides.setdefault(id_, {})["port"] = 20000 + n
    return overrides


@st.composite
def _routers(draw: st.DrawFn, hosts: list[dict[str, Any]]) -> dict[str, Any]:
    primary = draw(st.sampled_from([h["name"] for h in hosts]))
    routers: dict[str, Any] = {"primary": primary, "port": 8000, "bind": draw(st.sampled_from(["loopback", "all"]))}
    if draw(st.booleans()):
        routers |= {"standby": primary, "admin": {"standby_port": 9002}}
    if draw(st.booleans()):
        tls = {"cert": "/c", "key": "/k"}
        routers["admin"] = routers.get("admin", {}) | {
            "port": 9001,
            "bind": "fabric",
            "tokens": [{"name": "ops", "scope": "operate", "token": {"env": "TOKEN"}}],
            "tls": tls,
        }
    return routers


@st.composite
def _reactive(draw: st.DrawFn) -> dict[str, Any]:
    step = draw(st.sampled_from([0.5, 1.0, 5.0]))
    confirmations = draw(st.integers(1, 3))
    span = step * confirmations + draw(st.sampled_from([0.5, 2.0]))
    longest = span + draw(st.sampled_from([0.0, 6.0]))
    return {
        "step_s": step,
        "confirmations": confirmations,
        "evidence_span_s": span,
        "evidence_max_span_s": longest,
        "window_s": longest + draw(st.sampled_from([0.0, 20.0])),
    }
