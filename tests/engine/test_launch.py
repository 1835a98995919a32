from pathlib import Path

import pytest

from narwhal.engine.launch import simulated_argv
from narwhal.fleet import open_fleet

FLEET = """
apiVersion: narwhal/v1
kind: Fleet
metadata: {name: launch}
model: {name: tiny, path: tiny}
slo: {ttft_s: 2, tpot_s: 0.1}
hosts: [{name: local, engines: 2}]
engines:
  runtime: %s
  kv_lease_s: 12
split: {prefill: 1, decode: 1}
routers: {primary: local, port: 8000, admin: {port: 8001}}
lease: {backend: file}
"""


def test_every_engine_gets_its_own_ports_and_the_fleet_s_limits(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET % "{kind: simulated, profile: demo, speed: 2}")
    expanded = open_fleet(tmp_path / "fleet.yaml")
    first, second = (simulated_argv(expanded, engine) for engine in expanded.engines)
    assert first[1:5] == ["-m", "narwhal", "engine", "simulate"]
    options = dict(zip(second[5::2], second[6::2], strict=True))
    assert options["--port"] == str(expanded.engines[1].port)
    assert options["--side-channel-port"] == str(expanded.engines[1].side_channel_port)
    assert options["--kv-lease-s"] == "12.0"
    assert options["--speed"] == "2.0"
    assert options["--model"] == "tiny"


def test_an_engine_of_another_kind_is_not_simulated(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET % "{kind: venv, package: vllm==0.32.0}")
    expanded = open_fleet(tmp_path / "fleet.yaml")
    with pytest.raises(ValueError, match="runtime venv"):
        simulated_argv(expanded, expanded.engines[0])
