"""Schema and meaning in one run: nothing that is broken hides anything else."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from narwhal.fleet.advice import PATTERNS
from narwhal.fleet.model import Fleet
from tests.fleet.fleets import BASE, broken, findings, place_of

TEN = [
    ("metadata: {name: lab}", "metadata: {name: lab, revison: x}", "NW004", "revison"),
    ("  tpot_s: 0.05", "  tpot_s: fast", "NW006", "fast"),
    ("up_to_tokens: 4000", "up_to_tokens: 500", "NW052", "500, ttft_s: 2.0"),
    ("  kv_lease_s: 30", "  kv_lease_s: 0.5", "NW007", "0.5\n  port_base"),
    ("  max_num_batched_tokens: 2048", "  max_num_batched_tokens: 10", "NW029", "10\n  gpu_mem"),
    ("  prefill: 3", "  prefill: 2", "NW030", "split:"),
    ("  standby: edge-2", "  standby: edge-3", "NW012", "edge-3"),
    ("{env: SCRAPE}", "swordfish", "NW008", "swordfish"),
    ("[images.example.org]", "[http://x]", "NW057", "http://x"),
    ("    window_s: 30", "    window_s: 9", "NW060", "9\n    evidence_span"),
    ("    overflow: false", "    overflow: true", "NW063", "true\nprofiles"),
]


def test_a_file_with_many_mistakes_gives_them_all_in_one_run() -> None:
    text = BASE
    for old, new, _, _ in TEN:
        text = broken(old, new, text)
    found = [(f.id, f.line, f.column) for f in findings(text)]
    expected = [(id_, *place_of(text, piece)) for _, _, id_, piece in TEN]
    assert found == sorted(expected, key=lambda f: f[1:])
    assert len(found) > 10


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("hosts:\n", "hosts: nobody\nhost:\n"),
        ("engines:\n  runtime", "engines: []\nengine:\n  runtime"),
        ("  runtime: {kind: venv, package: vllm==0.26.0}", "  runtime: vllm"),
        ("routers:\n", "routers: 3\nrouter:\n"),
        ("controller:\n", "controller: on\ncontrol:\n"),
        ("split:\n", "split: even\nsplits:\n"),
        ("slo:\n", "slo: 1\nslos:\n"),
        ("name: gpu-1, ", ""),
        ("name: gpu-2, ", "name: [x], "),
    ],
)
def test_rules_bear_any_broken_section(old: str, new: str) -> None:
    found = findings(broken(old, new))
    assert found
    assert all(f.id in ("NW004", "NW005", "NW006", "NW007") for f in found), found


def test_a_broken_host_does_not_hide_rules_about_others() -> None:
    text = broken("{name: gpu-1, ssh: {address: 10.0.0.1, user: ops}", "{name: gpu-1, ssh: {address: 5, user: ops}")
    text = broken("address: 10.0.0.9, user", "address: 10.0.0.8, user", text)
    assert [f.id for f in findings(text)] == ["NW006", "NW011"]


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ("  kv_lease_s: 30", "  kv_leas_s: 30", "did you mean `kv_lease_s`?"),
        ("  kv_lease_s: 30", "  dwell_s: 30", "`dwell_s` belongs under `controller.thresholds`"),
        ("  tpot_s: 0.05", '  tpot_s: "0.05"', "take the quotes away: `tpot_s: 0.05`"),
        ("  tpot_s: 0.05", "  tpot_s: 50ms", "write a number without a unit, such as `tpot_s: 0.05`"),
        ("  tpot_s: 0.05", "  tpot_s: [1]", "write a number, such as `tpot_s: 0.05`"),
        ("  kv_lease_s: 30", "  kv_lease_s: 0.5", "write a number of at least 1, such as `kv_lease_s: 30`"),
        ("    overflow: false", "    overflow: maybe", "write true or false, such as `overflow: false`"),
        ("{name: lab}", "{name: Lab_1}", "write it as in `name: lab`"),
        ("    gpu-1/0: {pin: prefill}", "    gpu1: {pin: prefill}", "write the key as in `gpu-1/0: …`"),
        ("backend: etcd", "backend: zzz", "write one of etcd, file, such as `backend: etcd`"),
        ("{name: lab}", "3", "write keys with values below `metadata`, indented: labels, name, python, revision"),
        (
            "  - {name: b, keys: [{env: KEY_B}]}",
            "  - {name: b, keys: {}}",
            "write the items below `routers.tenants[1].keys:`",
        ),
        ("metadata: {name: lab}\n", "", "add `metadata: {name: lab}`"),
        ("split:\n", "splits:\n", "add `split: {prefill: 3, decode: 5}`"),
        ("hosts:\n", "host:\n", "add `hosts: [{name: gpu-1}]`"),
        ("  prefill: 3", "  prefill: 2", "such as `prefill: 2` and `decode: 6`"),
        ("{name: lab}", "{name: lab, revision: 7}", 'put it in quotes: "7"'),
        ("backend: etcd", "backend: ectd", "did you mean `etcd`?"),
        ("kind: venv", "kind: vnev", "did you mean `venv`?"),
        ("  primary: edge-1", "  primary: edge1", "did you mean `edge-1`?"),
        ("prior: 8b-h100", "prior: 8bh100", "did you mean `8b-h100`?"),
        ("apiVersion: narwhal/v1\n", "", "write `apiVersion: narwhal/v1`"),
    ],
)
def test_a_finding_says_what_to_write(old: str, new: str, hint: str) -> None:
    found = findings(broken(old, new))
    assert any(hint in f.hint for f in found), found


def test_every_pattern_of_the_schema_is_said_in_words_with_an_example_that_matches() -> None:
    schema = Fleet.model_json_schema()
    schema["$defs"].pop("SecretFromEnv")  # a secret has advice of its own
    assert set(_patterns(schema)) == set(PATTERNS)
    for pattern, (words, example) in PATTERNS.items():
        assert re.fullmatch(pattern, example)
        assert "[" not in words


def _patterns(schema: Any) -> Iterator[str]:
    """Patterns of texts, and of the keys of mappings, anywhere in a schema."""
    if isinstance(schema, dict):
        yield from schema.get("patternProperties", {})
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _patterns(part)


def test_one_engine_is_one_engine() -> None:
    text = broken(
        "gpus: 4}\n  - {name: gpu-2, ssh: {address: 10.0.0.2, user: ops}, fabric: {address: 10.1.0.2}, gpus: 4}",
        "gpus: 1}",
    )
    assert any(f.message == "the split is 3 + 5, and the fleet has 1 engine" for f in findings(text))
