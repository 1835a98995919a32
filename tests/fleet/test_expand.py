"""Expansion: whatever schema and rules accept can be expanded, and comes out consistent."""

import io
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from narwhal.documents import data_path
from narwhal.fleet import Expanded, check_text, expand
from narwhal.fleet.effective import engines_text, fleet_line
from narwhal.fleet.expand import assign_roles, base_url, shared_devices
from tests.fleet.strategies import fleets


def to_yaml(document: Any) -> str:
    """A document as YAML text."""
    out = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.dump(document, out)
    return out.getvalue()


def expanded(document: Any) -> Expanded:
    """The expansion of a document that must be good."""
    checked = check_text(to_yaml(document))
    assert checked.findings == ()
    assert checked.fleet is not None
    return expand(checked.fleet)


@settings(deadline=None, max_examples=100)
@given(fleets())
def test_what_is_accepted_can_be_expanded(document: Any) -> None:
    result = expanded(document)
    split = result.fleet.split
    roles = [engine.role for engine in result.engines]
    assert (roles.count("prefill"), roles.count("decode")) == (split.prefill, split.decode)
    assert len({engine.id for engine in result.engines}) == len(result.engines)
    ports = [(e.address, p) for e in result.engines for p in (e.port, e.side_channel_port)]
    assert len(set(ports)) == len(ports)
    assert all(engine.pin in (None, engine.role) for engine in result.engines)
    assert result.routers[0].host == result.fleet.routers.primary
    for engine in result.engines:
        assert result.engine(engine.id) is engine
        assert engine.url == f"http://{engine.address}:{engine.port}"
        host = next(h for h in result.fleet.hosts if h.name == engine.host)
        assert len(engine.gpus) == (result.fleet.engines.tensor_parallel if host.gpus else 0)


@settings(deadline=None, max_examples=60)
@given(fleets(), st.sampled_from(["split", "primary", "tpot", "spans", "batch", "override"]))
def test_one_mistake_in_any_fleet_is_found_at_its_line(document: Any, mistake: str) -> None:
    id_, path, line = _break(document, mistake)
    text = to_yaml(document)
    found = check_text(text).findings
    assert id_ in [f.id for f in found]
    hit = next(f for f in found if f.id == id_)
    assert hit.field == path
    assert text.splitlines()[hit.line - 1].strip().startswith(line)


def _break(document: Any, mistake: str) -> tuple[str, str, str]:
    """Make one mistake; its id, its field, and how its line begins."""
    if mistake == "split":
        document["split"]["decode"] += 1
        return "NW030", "split", "split:"
    if mistake == "primary":
        document["routers"]["primary"] = "nobody"
        document["routers"].pop("standby", None)
        return "NW012", "routers.primary", "primary: nobody"
    if mistake == "tpot":
        document["engines"]["runtime"] = {"kind": "simulated", "profile": "demo"}
        document["slo"]["tpot_s"] = 0.01
        return "NW050", "slo.tpot_s", "tpot_s: 0.01"
    if mistake == "spans":
        document["controller"]["reactive"]["window_s"] = 0.25
        return "NW060", "controller.reactive.window_s", "window_s: 0.25"
    if mistake == "batch":
        document["engines"] |= {"max_num_seqs": 100, "max_num_batched_tokens": 99}
        return "NW029", "engines.max_num_batched_tokens", "max_num_batched_tokens: 99"
    document["engines"]["overrides"]["gone/0"] = {"pin": "decode"}
    return "NW013", 'engines.overrides["gone/0"]', "gone/0:"


def test_prefill_goes_round_the_hosts() -> None:
    engines = [(f"{host}/{i}", i, None) for host in "ab" for i in range(3)]
    roles = assign_roles(engines, 2)
    assert [id_ for id_, role in roles.items() if role == "prefill"] == ["a/0", "b/0"]


def test_pins_come_first() -> None:
    roles = assign_roles([("a/0", 0, "decode"), ("a/1", 1, None), ("a/2", 2, "prefill")], 2)
    assert roles == {"a/0": "decode", "a/1": "prefill", "a/2": "prefill"}


def test_engines_that_share_a_card_are_a_group() -> None:
    engines = [("a", "a/0", (0,)), ("a", "a/1", (1, 2)), ("a", "a/2", (0, 1)), ("a", "a/3", (3,)), ("b", "b/0", (0,))]
    assert shared_devices(engines) == {"a/0": "a:0", "a/1": "a:0", "a/2": "a:0"}


def test_ipv6_addresses_stand_in_brackets() -> None:
    assert base_url("fd00::1", 80) == "http://[fd00::1]:80"


def test_discovered_addresses_win() -> None:
    fleet = check_text(data_path("inventories", "one-box", "fleet.yaml").read_text()).fleet
    assert fleet is not None
    assert {e.address for e in expand(fleet, {"box": "10.9.9.9"}).engines} == {"10.9.9.9"}


@pytest.mark.parametrize("name", ["laptop", "one-box", "two-racks"])
def test_examples_lie_beside_what_they_expand_to(name: str) -> None:
    fleet = check_text(data_path("inventories", name, "fleet.yaml").read_text()).fleet
    assert fleet is not None
    result = expand(fleet)
    text = f"{fleet_line(fleet, result)}\n\n{engines_text(result)}\n"
    path = data_path("inventories", name, "expansion.txt")
    assert path.read_text() == text, f"narwhal show --engines inventories/{name}/fleet.yaml > {path.name}"
