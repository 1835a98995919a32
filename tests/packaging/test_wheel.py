"""A wheel, installed into an empty environment outside the checkout, works by itself."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.packaging


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", out, ROOT], check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the scripts of an environment that holds nothing but the wheel."""
    venv = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin/pip", "install", "-q", wheel], check=True, capture_output=True)
    return venv / "bin"


def run(installed: Path, *argv: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "NARWHAL"))}
    return subprocess.run(
        [installed / argv[0], *argv[1:]], capture_output=True, text=True, cwd="/", env=environment, timeout=timeout
    )


def test_the_wheel_holds_the_data(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ("schemas/fleet/v1.json", "schemas/command-result/v1.json", "templates/profiles/demo.json"):
        assert f"narwhal/_data/{wanted}" in names
    assert any(name.startswith("narwhal/_data/inventories/") for name in names)
    assert not any(name.startswith("tests/") for name in names)


def test_help_and_version(installed: Path) -> None:
    assert "demo" in run(installed, "narwhal", "--help").stdout
    assert run(installed, "narwhal-serve", "--version").stdout.strip().startswith("narwhal-serve ")
    assert run(installed, "python", "-m", "narwhal", "version").returncode == 0


def test_schemas_are_found(installed: Path) -> None:
    done = run(installed, "narwhal", "schema", "fleet")
    assert json.loads(done.stdout)["properties"]["kind"]


@pytest.mark.timeout(400)
def test_the_demo_runs(installed: Path) -> None:
    done = run(installed, "narwhal", "demo", "--seconds", "20", "--format", "json")
    result = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert result["status"] == "success"
    data = result["data"]
    assert data["offered"] > 0
    assert data["failed"] == 0
