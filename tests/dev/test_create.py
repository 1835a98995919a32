import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from narwhal.dev import DevError, Instance, default_directory
from narwhal.dev.create import Created, Wish
from narwhal.dev.create import create as create_wished
from narwhal.dev.instance import DevInstance
from narwhal.dev.lifecycle import members
from narwhal.dev.process import DevProcess
from narwhal.dev.real import H200, RTX_5090, SMALL_CUDA, TEMPLATES
from narwhal.documents import Document, problems, read_schema
from narwhal.engine.render import render_launch
from narwhal.fleet import open_fleet
from narwhal.preflight.identity import launches


def create(instance: Instance, wish: Wish) -> Created:
    return create_wished(instance, wish, lambda line: None)


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], None]:
    """Puts an nvidia-smi on the PATH that finds one GPU of this name with so many GB free."""

    def found(name: str, free_gb: float) -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        mib = round(free_gb * 1e9) >> 20
        program = folder / "nvidia-smi"
        program.write_text(f"#!/bin/sh\necho '0, {name}, {mib}, {mib}, 580.159.03, 9.0'\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model directory with 2 GB of weights that take no room on the disk."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"max_position_embeddings": 8192}')
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(2 * 10**9)
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    return tmp_path / "venv"


@pytest.mark.parametrize("engines", [2, 3, 8])
def test_init_writes_a_fleet_file_that_is_valid(tmp_path: Path, engines: int) -> None:
    instance = Instance(tmp_path / "dev")
    made = create(instance, Wish(None, engines, None, force=False))
    expanded = open_fleet(instance.fleet)
    assert len(expanded.engines) == engines
    ports = [
        port for engine in expanded.engines for port in (engine.port, engine.side_channel_port, engine.attest_port)
    ]
    ports += [expanded.routers[0].port, expanded.routers[0].admin_port]
    assert len(set(ports)) == len(ports)
    assert made.port == expanded.routers[0].port
    assert {engine.role for engine in expanded.engines} == {"prefill", "decode"}
    document = DevInstance.model_validate_json(instance.document.read_bytes())
    assert problems(document.model_dump(mode="json", by_alias=True), "dev-instance") == []


def test_init_says_why_it_takes_the_simulated_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no GPU found" in create(Instance(tmp_path), Wish(None, 2, None, force=False)).why


def test_a_template_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DevError, match="there are simulated, cpu, small-cuda, rtx-5090, h200"):
        create(Instance(tmp_path), Wish("nonsense", 2))


@pytest.mark.parametrize(
    ("name", "free_gb", "template"),
    [("NVIDIA H200", 140, H200), ("NVIDIA GeForce RTX 5090", 32, RTX_5090), ("NVIDIA RTX A2000", 12, SMALL_CUDA)],
)
def test_a_gpu_chooses_its_template_and_its_memory_is_shared_out(
    tmp_path: Path, gpu: Callable[[str, float], None], model: Path, environment: Path,
    name: str, free_gb: float, template: str,
) -> None:  # fmt: skip
    gpu(name, free_gb)
    instance = Instance(tmp_path / "dev")
    made = create(instance, Wish(model=model, environment=environment))
    assert (made.template, made.engines) == (template, TEMPLATES[template].engines)
    assert name in made.why
    expanded = instance.expanded()
    assert {engine.shared_device for engine in expanded.engines} == {"local:0"}
    launch = [render_launch(expanded, engine) for engine in expanded.engines]
    assert all(record.gpus == [0] for record in launch)
    kv = int(expanded.fleet.engines.args["kv-cache-memory-bytes"])
    taken = made.engines * (2 * 10**9 + TEMPLATES[template].overhead_bytes + kv)
    assert taken <= min(free_gb * 1e9, TEMPLATES[template].budget_bytes or free_gb * 1e9)
    assert expanded.fleet.engines.max_model_len <= 8192
    names = [member.start.name for member in members(instance, expanded)]
    engines = [engine.id for engine in expanded.engines]
    assert names == [*engines, *(f"{engine}/attest" for engine in engines), "router"]
    assert {launches(expanded)[record.engine] for record in launch} == {record.digest() for record in launch}
    ports = [port for member in members(instance, expanded) for port in member.ports]
    assert len(set(ports)) == len(ports)


def test_small_cuda_never_plans_more_than_8_gb(
    tmp_path: Path, gpu: Callable[[str, float], None], model: Path, environment: Path
) -> None:
    gpu("NVIDIA H200", 140)
    instance = Instance(tmp_path / "dev")
    create(instance, Wish("small-cuda", model=model, environment=environment))
    engines = instance.expanded().fleet.engines
    overhead = TEMPLATES[SMALL_CUDA].overhead_bytes
    assert 2 * (2 * 10**9 + overhead + int(engines.args["kv-cache-memory-bytes"])) <= 8 * 10**9


def test_too_little_memory_is_named_to_the_gigabyte(
    tmp_path: Path, gpu: Callable[[str, float], None], model: Path, environment: Path
) -> None:
    gpu("NVIDIA GeForce GTX 1650", 4.0)
    with pytest.raises(DevError, match=r"2 engines need 6\.2 GiB .* 3\.5 GiB may be used, 2\.7 GiB are missing"):
        create(Instance(tmp_path / "dev"), Wish(model=model, environment=environment))
    assert not (tmp_path / "dev").exists()


def test_what_a_gpu_template_lacks_is_named(
    tmp_path: Path, gpu: Callable[[str, float], None], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        with pytest.raises(DevError, match="nvidia-smi finds none"):
            create(Instance(tmp_path / "a"), Wish("h200", model=model))
    gpu("NVIDIA H200", 140)
    with pytest.raises(DevError, match="needs a model"):
        create(Instance(tmp_path / "b"), Wish())
    with pytest.raises(DevError, match="vLLM and NIXL are not installed"):
        create(Instance(tmp_path / "c"), Wish(model=model))
    with pytest.raises(DevError, match="bin/python is not there"):
        create(Instance(tmp_path / "d"), Wish(model=model, environment=tmp_path / "none"))
    (model / "model.safetensors").unlink()
    with pytest.raises(DevError, match="holds no"):
        create(Instance(tmp_path / "e"), Wish(model=model))


def test_a_broken_nvidia_smi_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not communicate'; exit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(DevError, match="could not communicate"):
        create(Instance(tmp_path / "dev"), Wish())
    assert create(Instance(tmp_path / "dev"), Wish("simulated", 2)).template == "simulated"


def test_init_replaces_an_instance_only_when_forced(tmp_path: Path) -> None:
    instance = Instance(tmp_path)
    create(instance, Wish("simulated", 2, None, force=False))
    with pytest.raises(DevError, match="already"):
        create(instance, Wish("simulated", 3, None, force=False))
    create(instance, Wish("simulated", 3, None, force=True))
    assert len(open_fleet(instance.fleet).engines) == 3


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(DevError, match=f"port {port} "):
            create(Instance(tmp_path / "dev"), Wish(None, 2, port, force=False))
    assert not (tmp_path / "dev").exists()


def test_a_broken_fleet_file_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    instance = Instance(tmp_path)
    create(instance, Wish(None, 2, None, force=False))
    instance.fleet.write_text(instance.fleet.read_text().replace("engines: 2", "engines: many"))
    with pytest.raises(DevError) as failure:
        instance.expanded()
    assert failure.value.hint == f"narwhal validate {instance.fleet}"


def test_no_instance_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DevError) as failure:
        Instance(tmp_path / "none").expanded()
    assert failure.value.hint == "narwhal dev init"


def test_where_the_instance_lives() -> None:
    assert default_directory({"NARWHAL_HOME": "/x", "HOME": "/y"}) == Path("/x/dev/default")
    assert default_directory({"HOME": "/y"}) == Path("/y/.local/share/narwhal/dev/default")


@pytest.mark.parametrize(("model", "name"), [(DevInstance, "dev-instance"), (DevProcess, "dev-process")])
def test_model_and_schema_agree(model: type[Document], name: str) -> None:
    schema = read_schema(name)
    keys = {field.alias or key for key, field in model.model_fields.items()}
    assert set(schema["properties"]) == set(schema["required"]) == keys
    assert schema["additionalProperties"] is False
