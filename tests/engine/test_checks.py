"""Checks before a start: each can fail, and says what to do."""

import socket
import sys
from pathlib import Path

import pytest

from narwhal.engine.checks import CHECKS, check_launch, judge_gpus
from narwhal.engine.record import EngineLaunch
from narwhal.engine.tree import tree_digest
from tests.engine.test_render import CPU, launch_of

SMI = "0, NVIDIA H200, 143771, 4\n1, NVIDIA H200, 143771, 90000\n"


@pytest.fixture
def launch(tmp_path: Path) -> EngineLaunch:
    """A launch whose every check passes, with a model and the Python of the tests."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    found = launch_of(tmp_path, CPU)
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        ports = one.getsockname()[1], other.getsockname()[1]
    return found.model_copy(
        update={
            "argv": [sys.executable],
            "packages": {"pytest": pytest.__version__},
            "connector": None,
            "port": ports[0],
            "side_channel_port": ports[1],
            "secrets": {},
            "model": found.model.model_copy(update={"path": str(model), "digest": tree_digest(model)}),
        }
    )


def outcome(launch: EngineLaunch, name: str) -> tuple[str, str, str]:
    found = CHECKS[name](launch)
    return found.status, found.reason, found.next_step


def test_all_is_well(launch: EngineLaunch) -> None:
    statuses = {check.name: check.status for check in check_launch(launch)}
    assert statuses == {
        "executable": "ok",
        "packages": "ok",
        "connector": "SKIP",
        "model": "ok",
        "ports": "ok",
        "gpus": "SKIP",
        "secrets": "SKIP",
    }
    assert [check.name for check in check_launch(launch, leave_out=["model", "gpus"])] == [
        name for name in CHECKS if name not in ("model", "gpus")
    ]


@pytest.mark.parametrize("name", ["executable", "packages"])
def test_a_program_that_is_not_there(launch: EngineLaunch, name: str) -> None:
    status, reason, step = outcome(launch.model_copy(update={"argv": ["/nowhere/bin/python"]}), name)
    assert status == "FAIL"
    assert "/nowhere/bin/python" in reason
    assert step.startswith("/nowhere/bin/pip install")


@pytest.mark.parametrize(
    ("packages", "said"), [({"pytest": "1.0"}, "not 1.0"), ({"no-such-package": ""}, "no-such-package is missing")]
)
def test_packages_of_another_version(launch: EngineLaunch, packages: dict[str, str], said: str) -> None:
    status, reason, _ = outcome(launch.model_copy(update={"packages": packages}), "packages")
    assert status == "FAIL"
    assert said in reason


def test_a_connector_that_cannot_be_imported(launch: EngineLaunch) -> None:
    status, reason, step = outcome(launch.model_copy(update={"connector": "NixlConnector"}), "connector")
    assert (status, "cannot be imported: ModuleNotFoundError" in reason) == ("FAIL", True)
    assert "nixl" in step


def test_a_model_that_changed(launch: EngineLaunch) -> None:
    folder = Path(launch.model.path)
    (folder / "README.md").write_text("not part of it")
    assert outcome(launch, "model")[0] == "ok"
    (folder / "weights").write_bytes(b"x")
    status, reason, _ = outcome(launch, "model")
    assert (status, f"not {launch.model.digest}" in reason) == ("FAIL", True)
    undeclared = launch.model_copy(update={"model": launch.model.model_copy(update={"digest": None})})
    assert outcome(undeclared, "model")[0] == "WARN"
    (folder / "config.json").unlink()
    assert "has no config.json" in outcome(launch, "model")[1]


@pytest.mark.parametrize("which", ["port", "side_channel_port"])
def test_a_port_that_somebody_has(launch: EngineLaunch, which: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", getattr(launch, which)))
        other.listen()
        status, reason, step = outcome(launch, "ports")
    assert status == "FAIL"
    assert str(getattr(launch, which)) in reason
    assert step.startswith("see who has it")


def test_an_address_of_another_host(launch: EngineLaunch) -> None:
    assert outcome(launch.model_copy(update={"host": "192.0.2.1"}), "ports")[0] == "FAIL"


@pytest.mark.parametrize(
    ("wanted", "status", "said"),
    [([0], "ok", "0: NVIDIA H200, 143771 MiB"), ([0, 7], "FAIL", "no GPU 7"), ([1], "WARN", "90000 MiB in use")],
)
def test_gpus_by_nvidia_smi_s_list(wanted: list[int], status: str, said: str) -> None:
    found = judge_gpus(wanted, SMI)
    assert found.status == status
    assert said in found.reason


def test_a_secret_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = launch_of(tmp_path, CPU)
    monkeypatch.delenv("TOKEN_OF_THE_TEST", raising=False)
    assert outcome(launch, "secrets")[0] == "FAIL"
    monkeypatch.setenv("TOKEN_OF_THE_TEST", "top-secret")
    assert outcome(launch, "secrets") == ("ok", "HF_TOKEN", "")


def test_the_digest_is_of_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    first = tree_digest(tmp_path)
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "x").write_text("2")
    assert tree_digest(tmp_path) == first
    (tmp_path / "a").rename(tmp_path / "b")
    assert tree_digest(tmp_path) != first
    with pytest.raises(NotADirectoryError):
        tree_digest(tmp_path / "b")
