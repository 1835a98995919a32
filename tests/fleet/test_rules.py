"""Each rule: a good file with one mistake gives exactly that finding, at its line and column."""

import re

import pytest

from narwhal.fleet.rules import RULES
from narwhal.fleet.rules.hosts import is_url
from tests.fleet.fleets import BASE, broken, findings, place_of

MISTAKES = {
    # id: (what stands there, what is written instead, where the finding points in the new text)
    "NW001": ("model: {name: m, path: /models/m}", "model: {name: m, path: /models/m", ":\n  ttft_s"),
    "NW002": ("  port: 8000\n", "  port: 8000\n  port: 8002\n", "port: 8002"),
    "NW003": ("apiVersion: narwhal/v1", "apiVersion: narwhal/v9", "narwhal/v9"),
    "NW004": ("  kv_lease_s: 30", "  kv_lease: 30", "kv_lease: 30"),
    "NW005": ("  tpot_s: 0.05\n", "", "slo:"),
    "NW006": ("  max_num_seqs: 64", "  max_num_seqs: many", "many"),
    "NW007": ("  port_base: 8100", "  port_base: 70000", "70000"),
    "NW008": ('env: {HF_HUB_OFFLINE: "1"}', "env: {HF_TOKEN: abc}", "abc"),
    "NW010": (
        "  - {name: edge-2,",
        "  - {name: edge-1, ssh: {address: 10.0.0.7, user: ops}, fabric: {address: 10.1.0.7}}\n  - {name: edge-2,",
        "edge-1, ssh: {address: 10.0.0.7",
    ),
    "NW011": (
        "{address: 10.0.0.2, user",
        "{address: 10.0.0.1, user",
        "10.0.0.1, user: ops}, fabric: {address: 10.1.0.2",
    ),
    "NW012": ("  primary: edge-1", "  primary: egde-1", "egde-1"),
    "NW013": ("    gpu-1/1: {gpus: [1]}", "    gpu-1/9: {port: 9000}", "gpu-1/9"),
    "NW014": (
        "{name: edge-2, ssh: {address: 10.0.0.9, user: ops}, fabric: {address: 10.1.0.9}}",
        "{name: edge-2, fabric: {address: 127.0.0.1}}",
        "127.0.0.1",
    ),
    "NW015": (", fabric: {address: 10.1.0.9}}", "}", "{name: edge-2"),
    "NW016": ('url: "http://10.1.0.2:8101"', 'url: "http://10.0.0.2:8101"', '"http://10.0.0.2:8101"'),
    "NW020": ('"https://10.1.0.9:2379"]', '"10.1.0.9:2379"]', '"10.1.0.9:2379"'),
    "NW021": ("gpu-1/1: {gpus: [1]}", "gpu-1/1: {gpus: [1], port: 8102}", "8100\n"),
    "NW022": ("  side_channel_port_base: 5600", "  side_channel_port_base: 65533", "65533"),
    "NW024": ("gpus: [1]", "gpus: [4]", "4]}"),
    "NW025": ("gpus: [1]", "gpus: [0]", "0.9\n  kv"),
    "NW026": ("gpus: [1]", "gpus: []", "[]"),
    "NW028": ("args: {enforce-eager: true}", "args: {max-model-len: 100}", "max-model-len"),
    "NW029": ("  max_num_batched_tokens: 2048", "  max_num_batched_tokens: 32", "32\n"),
    "NW030": ("  prefill: 3", "  prefill: 2", "split:"),
    "NW033": ("  min_decode: 1", "  min_decode: 8", "8\n  thresholds"),
    "NW034": ("  min_prefill: 1", "  min_prefill: 4", "3\n  decode: 5"),
    "NW040": (
        'backend: etcd\n  endpoints: ["https://10.1.0.8:2379", "https://10.1.0.9:2379"]',
        "backend: file",
        "file\nserving",
    ),
    "NW041": ("  standby: edge-2", "  standby: edge-1", "edge-1\n  port"),
    "NW042": ("    tls: {cert: /tls/admin.pem, key: /tls/admin.key}\n", "", "fabric\n"),
    "NW043": ("  front: vip", "  front: lb", "vip: {address"),
    "NW044": ("  bind: all", "  bind: loopback", "loopback\n  admin"),
    "NW045": ("{address: 10.0.0.100/24,", "{address: 10.0.0.100,", "10.0.0.100"),
    "NW046": ("{name: b, keys", "{name: a, keys", "a, keys: [{env"),
    "NW047": ("{name: b, keys: [{env: KEY_B}]}", "{name: b}", "{name: b}"),
    "NW048": ("{env: KEY_B}", "{file: /keys/a}", "{file: /keys/a}]}\nlease"),
    "NW049": ('"https://10.1.0.9:2379"]', '"https://10.1.0.8:2379/"]', '"https://10.1.0.8:2379/"'),
    "NW050": ("  tpot_s: 0.05", "  tpot_s: 0.008", "0.008"),
    "NW051": ("{up_to_tokens: 1000, ttft_s: 1.0}", "{up_to_tokens: 1000, ttft_s: 0.004}", "0.004"),
    "NW052": ("up_to_tokens: 4000", "up_to_tokens: 900", "900"),
    "NW053": ("prior: 8b-h100", "prior: 8b-h10", "8b-h10"),
    "NW054": ("  kv_lease_s: 30", "  kv_lease_s: 3", "3\n  port_base"),
    "NW055": ("    prefill_s: 60", "    prefill_s: 601", "601"),
    "NW056": ("    first_token_s: 30", "    first_token_s: 1", "1\n    gap"),
    "NW057": ("[images.example.org]", "[https://images.example.org]", "https://images"),
    "NW058": (
        "  media_hosts: [images.example.org]",
        "  media_hosts: [images.example.org]\n  max_buffered_bytes: 1048576",
        "1048576",
    ),
    "NW060": ("    evidence_span_s: 4", "    evidence_span_s: 2", "2\n    evidence_max"),
    "NW061": ("    shrink: 0.5", "    shrink: 1.0", "1.0\n    expand"),
    "NW062": ("    short_window_s: 3", "    short_window_s: 0.5", "1\n    short"),
    "NW070": ("{name: scrape, scope", "{name: ops, scope", "ops, scope: read"),
    "NW071": ("{env: SCRAPE}", "{file: /keys/ops}", "{file: /keys/ops}}\n      - {name: peer"),
    "NW073": ("profiles: {", "recovery:\n  drift: {eject_at: 1.25}\nprofiles: {", "1.25"),
    "NW074": ("scope: replicate", "scope: read", "edge-2\n  port"),
    "NW080": ("name: code-2", "name: chat-4", "chat-4\n      traffic: {kind: mix"),
    "NW081": ("      prompts: text", "      prompts: ids", "ids\n      shared"),
    "NW082": ('{kind: mix, mix: "steady:code", rate_rps: 2}', "{kind: trace, path: none.csv}", "none.csv"),
    "NW083": ("{tokens: 64}", "{tokens: 500}", "500}\n      search"),
    "NW084": ("low_rps: 2", "low_rps: 17", "17"),
    "NW085": ("output_tokens: 100", "output_tokens: 16000", "500, output"),
    "NW063": ("    overflow: false", "    overflow: true", "true\nprofiles"),
}
"""One mistake for each rule."""

OTHERS = {"NW023", "NW027", "NW031", "NW032", "NW064", "NW072"}
"""Rules that take several changes to break; each has a test of its own below."""


def test_the_good_file_has_no_finding() -> None:
    assert findings(BASE) == []


def test_every_rule_is_tested() -> None:
    assert set(MISTAKES) | OTHERS == set(RULES)


@pytest.mark.parametrize("id_", MISTAKES)
def test_one_mistake_gives_one_finding_at_its_place(id_: str) -> None:
    old, new, piece = MISTAKES[id_]
    text = broken(old, new)
    found = findings(text)
    assert [f.id for f in found] == [id_], found
    assert (found[0].line, found[0].column) == place_of(text, piece)
    assert found[0].message
    assert found[0].expected
    assert found[0].hint


def test_a_host_has_no_more_engines_than_its_gpus_carry() -> None:
    text = broken("{kind: venv, package: vllm==0.26.0}", "{kind: simulated}")  # so that no card is full
    text = broken("fabric: {address: 10.1.0.2}, gpus: 4}", "fabric: {address: 10.1.0.2}, gpus: 3, engines: 4}", text)
    assert_only(text, "NW023", "4}\n  - {name: edge-1")


def test_a_fleet_has_engines() -> None:
    text = SMALL.replace("{{name: local}}", "{{name: local, engines: 0}}").format(
        pins="{}", prefill=0, decode=0, rest=""
    )
    assert_only(text, "NW027", "hosts:")


def test_some_engine_is_free_for_each_role() -> None:
    text = SMALL.format(pins="{local/0: {pin: decode}, local/1: {pin: decode}}", prefill=0, decode=2, rest="")
    text += "controller: {min_prefill: 0}\n"
    assert_only(text, "NW031", "decode}}\n")


def test_the_split_has_room_for_the_pins() -> None:
    text = broken("gpu-1/1: {gpus: [1]}", "gpu-1/1: {pin: prefill, gpus: [1]}")
    text = broken("  prefill: 3\n  decode: 5", "  prefill: 1\n  decode: 7", text)
    assert_only(text, "NW032", "1\n  decode: 7")


def test_a_standby_elsewhere_reaches_no_loopback_listener() -> None:
    text = broken("    bind: fabric", "    bind: loopback")
    assert_only(text, "NW074", "edge-2\n  port")
    assert findings(broken("  standby: edge-2\n", "", text)) == []


def test_advisory_is_for_a_controller_that_is_on() -> None:
    text = broken("  enabled: true\n  advisory: false", "  enabled: false\n  advisory: true")
    assert_only(text, "NW064", "true\n  min_prefill")


def test_one_engine_serves_both_roles_without_floors() -> None:
    assert findings(SMALL.replace("per_host: 2", "per_host: 1").format(pins="{}", prefill=1, decode=0, rest="")) == []


@pytest.mark.parametrize(("pins", "floor"), [(6, 3), (7, 2)])
def test_floors_hold_beside_the_pins(pins: int, floor: int) -> None:
    listed = ", ".join(f"local/{i}: {{pin: prefill}}" for i in range(pins))
    text = SMALL.replace("per_host: 2", "per_host: 8").format(
        pins=f"{{{listed}}}", prefill=pins, decode=8 - pins, rest=""
    )
    text += f"controller: {{min_decode: {floor}}}\n"
    assert_only(text, "NW033", f"{floor}}}\n")


def test_engines_that_share_a_card_need_shares() -> None:
    text = broken("  per_gpu: 1\n", "  per_gpu: 2\n")
    text = broken("  prefill: 3\n  decode: 5", "  prefill: 8\n  decode: 8", text)
    found = findings(text)
    assert [f.id for f in found] == ["NW025"]
    assert "1.8" in found[0].message
    assert findings(broken("gpu_memory_utilization: 0.9", "gpu_memory_utilization: 0.45", text)) == []


def test_shares_without_a_word_are_those_of_the_engine() -> None:
    text = broken("  per_gpu: 1\n", "  per_gpu: 2\n").replace("  gpu_memory_utilization: 0.9\n", "")
    text = broken("  prefill: 3\n  decode: 5", "  prefill: 8\n  decode: 8", text)
    assert [f.id for f in findings(text)] == ["NW025"]
    assert findings(broken("{enforce-eager: true}", "{kv-cache-memory-bytes: 1000000000}", text)) == []


@pytest.mark.parametrize(
    "url",
    [
        "10.0.0.1:80",
        "ftp://10.0.0.1",
        "http://",
        "http://u:p@h:1",
        "http://h:99999",
        "http://h/path",
        "http://h x:1",
        "",
    ],
)
def test_a_url_is_that_of_a_server(url: str) -> None:
    assert not is_url(url)


@pytest.mark.parametrize("url", ["http://10.0.0.1:8000", "https://etcd.example.org:2379/", "http://[fd00::1]:80"])
def test_urls_of_servers(url: str) -> None:
    assert is_url(url)


@pytest.mark.parametrize(
    "value",
    [
        "sk-abcdefghijklmnopqrstuvwx",
        "hf_abcdefghijklmnopqrstuvwx",
        "https://user:pass@example.org/simple",
        "-----BEGIN RSA PRIVATE KEY-----",
    ],
)
def test_what_looks_like_a_key_is_found_anywhere(value: str) -> None:
    text = broken("metadata: {name: lab}", f'metadata: {{name: lab, labels: {{note: "{value}"}}}}')
    found = findings(text)
    assert [f.id for f in found] == ["NW008"]
    assert value not in str(found)


def test_a_literal_token_is_found_and_not_repeated() -> None:
    text = broken("{env: SCRAPE}", "swordfish")
    assert_only(text, "NW008", "swordfish")
    assert "swordfish" not in str(findings(text))


def test_the_admin_listener_off_loopback_needs_both() -> None:
    alone = broken("  standby: edge-2\n", "")  # which would need a token too
    tls = "    tls: {cert: /tls/admin.pem, key: /tls/admin.key}\n"
    without_tokens = re.sub(r"    tokens:\n(      .*\n)+", "", alone)
    for text, missing in (
        (broken(tls, "", alone), "tls"),
        (without_tokens, "tokens"),
        (broken(tls, "", without_tokens), "tokens and tls"),
    ):
        assert [(f.id, f.message.split("without ")[1]) for f in findings(text)] == [("NW042", missing)]


def test_simulated_engines_are_not_reached_over_tls() -> None:
    text = SMALL.format(pins="{}", prefill=1, decode=1, rest="").replace(
        "  per_host: 2", "  per_host: 2\n  tls: {ca: /ca.pem}"
    )
    assert_only(text, "NW072", "tls: {ca")
    own = "{local/0: {url: 'https://127.0.0.1:1'}, local/1: {url: 'https://127.0.0.1:2'}}"
    assert findings(text.replace("overrides: {}", f"overrides: {own}")) == []


def test_a_vip_without_address_is_not_a_vip() -> None:
    text = broken("  vip: {address: 10.0.0.100/24, interface: eth0}\n", "")
    assert_only(text, "NW043", "vip\n")


SMALL = """\
apiVersion: narwhal/v1
kind: Fleet
metadata: {{name: small}}
model: {{name: m, path: /m}}
slo: {{ttft_s: 2, tpot_s: 0.06}}
hosts: [{{name: local}}]
engines:
  runtime: {{kind: simulated}}
  per_host: 2
  overrides: {pins}
split: {{prefill: {prefill}, decode: {decode}}}
routers: {{primary: local}}
{rest}"""


def assert_only(text: str, id_: str, piece: str) -> None:
    """Exactly one finding, of that id, where `piece` begins."""
    found = findings(text)
    assert [(f.id, f.line, f.column) for f in found] == [(id_, *place_of(text, piece))], found
