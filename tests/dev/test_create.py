import socket
from pathlib import Path

import pytest

from narwhal.dev import DevError, Instance, default_directory
from narwhal.dev.create import create
from narwhal.dev.instance import DevInstance
from narwhal.dev.process import DevProcess
from narwhal.dev.template import LATER
from narwhal.documents import Document, problems, read_schema
from narwhal.fleet import open_fleet


@pytest.mark.parametrize("engines", [2, 3, 8])
def test_init_writes_a_fleet_file_that_is_valid(tmp_path: Path, engines: int) -> None:
    instance = Instance(tmp_path / "dev")
    made = create(instance, template=None, engines=engines, port=None, force=False)
    expanded = open_fleet(instance.fleet)
    assert len(expanded.engines) == engines
    ports = [port for engine in expanded.engines for port in (engine.port, engine.side_channel_port)]
    ports += [expanded.routers[0].port, expanded.routers[0].admin_port]
    assert len(set(ports)) == len(ports)
    assert made.port == expanded.routers[0].port
    assert {engine.role for engine in expanded.engines} == {"prefill", "decode"}
    document = DevInstance.model_validate_json(instance.document.read_bytes())
    assert problems(document.model_dump(mode="json", by_alias=True), "dev-instance") == []


def test_init_says_why_it_takes_the_simulated_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no GPU found" in create(Instance(tmp_path), template=None, engines=2, port=None, force=False).why


@pytest.mark.parametrize("name", [*LATER, "nonsense"])
def test_a_template_that_is_not_there_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(DevError, match="this version"):
        create(Instance(tmp_path), template=name, engines=2, port=None, force=False)


def test_init_replaces_an_instance_only_when_forced(tmp_path: Path) -> None:
    instance = Instance(tmp_path)
    create(instance, template="simulated", engines=2, port=None, force=False)
    with pytest.raises(DevError, match="already"):
        create(instance, template="simulated", engines=3, port=None, force=False)
    create(instance, template="simulated", engines=3, port=None, force=True)
    assert len(open_fleet(instance.fleet).engines) == 3


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(DevError, match=f"port {port} "):
            create(Instance(tmp_path / "dev"), template=None, engines=2, port=port, force=False)
    assert not (tmp_path / "dev").exists()


def test_a_broken_fleet_file_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    instance = Instance(tmp_path)
    create(instance, template=None, engines=2, port=None, force=False)
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
