"""Good fleet files for tests, and a way to break them at a known place."""

from narwhal.fleet import Finding, check_text

BASE = """\
apiVersion: narwhal/v1
kind: Fleet
metadata: {name: lab}
model: {name: m, path: /models/m}
slo:
  ttft_s: 2.0
  tpot_s: 0.05
  ttft_by_prompt:
    - {up_to_tokens: 1000, ttft_s: 1.0}
    - {up_to_tokens: 4000, ttft_s: 2.0}
hosts:
  - {name: gpu-1, ssh: {address: 10.0.0.1, user: ops}, fabric: {address: 10.1.0.1}, gpus: 4}
  - {name: gpu-2, ssh: {address: 10.0.0.2, user: ops}, fabric: {address: 10.1.0.2}, gpus: 4}
  - {name: edge-1, ssh: {address: 10.0.0.8, user: ops}, fabric: {address: 10.1.0.8}}
  - {name: edge-2, ssh: {address: 10.0.0.9, user: ops}, fabric: {address: 10.1.0.9}}
engines:
  runtime: {kind: venv, package: vllm==0.26.0}
  per_gpu: 1
  tensor_parallel: 1
  max_num_seqs: 64
  max_num_batched_tokens: 2048
  gpu_memory_utilization: 0.9
  kv_lease_s: 30
  port_base: 8100
  side_channel_port_base: 5600
  args: {enforce-eager: true}
  env: {HF_HUB_OFFLINE: "1"}
  overrides:
    gpu-1/0: {pin: prefill}
    gpu-1/1: {gpus: [1]}
    gpu-2/0: {pin: decode}
    gpu-2/1: {url: "http://10.1.0.2:8101"}
split:
  prefill: 3
  decode: 5
routers:
  primary: edge-1
  standby: edge-2
  port: 8000
  bind: all
  admin:
    port: 8001
    standby_port: 8011
    bind: fabric
    tokens:
      - {name: ops, scope: operate, token: {file: /keys/ops}}
      - {name: scrape, scope: read, token: {env: SCRAPE}}
      - {name: peer, scope: replicate, token: {file: /keys/peer}}
    tls: {cert: /tls/admin.pem, key: /tls/admin.key}
  front: vip
  vip: {address: 10.0.0.100/24, interface: eth0}
  tenants:
    - {name: a, keys: [{file: /keys/a}]}
    - {name: b, keys: [{env: KEY_B}]}
lease:
  backend: etcd
  endpoints: ["https://10.1.0.8:2379", "https://10.1.0.9:2379"]
serving:
  admission: predictive
  media_hosts: [images.example.org]
  deadlines:
    prefill_s: 60
    first_token_s: 30
    gap_s: 30
    request_s: 600
controller:
  enabled: true
  advisory: false
  min_prefill: 1
  min_decode: 1
  thresholds:
    shrink: 0.5
    expand: 1.0
  reactive:
    step_s: 1
    window_s: 30
    evidence_span_s: 4
    evidence_max_span_s: 10
  projection:
    step_s: 1
    short_window_s: 3
    overflow: false
profiles: {prior: 8b-h100}
benchmark:
  points:
    - name: chat-4
      traffic: {kind: rate, rate_rps: 4, prompt_tokens: 500, output_tokens: 100}
      endpoint: chat
      prompts: text
      shared_prefix: {tokens: 64}
      search: {low_rps: 2, high_rps: 16}
    - name: code-2
      traffic: {kind: mix, mix: "steady:code", rate_rps: 2}
"""
"""Uses most of the file's keys, so that a mistake is one replaced piece of text."""


def place_of(text: str, piece: str) -> tuple[int, int]:
    """Line and column, both 1-based, where `piece` stands for the first time."""
    at = text.index(piece)
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def broken(old: str, new: str, text: str = BASE) -> str:
    """The good file with one piece replaced; the piece must be there once."""
    assert text.count(old) == 1, old
    return text.replace(old, new)


def findings(text: str) -> list[Finding]:
    """Everything that is wrong with a text."""
    return list(check_text(text, "fleet.yaml").findings)
