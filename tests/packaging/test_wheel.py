"""A wheel, installed into an empty environment outside the checkout, works by itself."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from narwhal.documents import data_path

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
    for wanted in ("templates/grafana/narwhal-ops.json", "docs/runbooks.md"):  # what narwhal observe render copies
        assert f"narwhal/_data/{wanted}" in names
    for shipped in ("page.html", "page.css", "page.js", "draw.js", "icon.svg"):
        assert f"narwhal/router/live/{shipped}" in names
    assert any(name.startswith("narwhal/_data/inventories/") for name in names)
    assert not any(name.startswith("tests/") for name in names)


def test_the_wheel_renders_what_prometheus_and_grafana_read(installed: Path, tmp_path: Path) -> None:
    fleet = data_path("inventories", "one-box", "fleet.yaml")
    done = run(installed, "narwhal", "observe", "render", str(fleet), "-o", str(tmp_path / "observe"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "observe/grafana/narwhal-engines.json").is_file()
    assert "## Engine ejected" in (tmp_path / "observe/runbooks.md").read_text()


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


def test_an_installed_narwhal_packages_itself_as_the_checkout_does(installed: Path, tmp_path: Path) -> None:
    code = "import sys, pathlib; from narwhal.deploy.ownwheel import own_wheel; own_wheel(pathlib.Path(sys.argv[1]))"
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    done = run(installed, "python", "-c", code, str(there))
    assert done.returncode == 0, done.stderr
    subprocess.run([sys.executable, "-c", code, here], check=True, cwd=ROOT)
    (one,), (two,) = there.iterdir(), here.iterdir()
    assert one.name == two.name
    assert one.read_bytes() == two.read_bytes()
    changed = Path(run(installed, "python", "-c", "import narwhal; print(narwhal.__file__)").stdout.strip())
    before = changed.read_bytes()
    try:
        changed.write_bytes(before + b"\n")
        assert "was changed after it was installed" in run(installed, "python", "-c", code, str(there)).stderr
    finally:
        changed.write_bytes(before)


def test_an_installed_narwhal_renders_with_playbooks(installed: Path, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text((ROOT / "inventories/two-racks/fleet.yaml").read_text())
    done = run(installed, "narwhal", "render", str(fleet), "-o", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    shipped = {path.relative_to(ROOT / "playbooks") for path in (ROOT / "playbooks").rglob("*.yml")}
    assert all((tmp_path / "out" / path).is_file() for path in shipped)
