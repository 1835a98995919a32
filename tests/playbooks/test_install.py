"""What gate B makes of a bundle: an environment that runs, of the wheels that were approved and no others."""

import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.playbooks.loading import load

program = load("roles", "install", "files", "install.py")
ENTRY = "[console_scripts]\nhello = greeting:say.hello\n"


def wheel(**more: str) -> bytes:
    files = {
        "greeting.py": "class say:\n    def hello():\n        print('hello')\n",
        "greeting-1.dist-info/entry_points.txt": ENTRY,
        "greeting-1.dist-info/RECORD": "",
    }
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w") as archive:
            for path, text in (files | more).items():
                archive.writestr(path, text)
        return buffer.getvalue()


def bundle(path: Path, content: bytes, *, stored: bytes | None = None, engine: bool = False) -> Path:
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    name = "wheelhouse/greeting-1-py3-none-any.whl"
    files = {
        "bundle.json": json.dumps({"files": {name: digest, "requirements.txt": "sha256:0"}}).encode(),
        "requirements.txt": f"greeting==1 --hash={digest}\n".encode(),
        name: content if stored is None else stored,
    } | ({"requirements-engine.txt": b""} if engine else {})
    with tarfile.open(path, "w") as archive:
        for file, data in files.items():
            info = tarfile.TarInfo(file)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def test_the_environment_runs_what_its_wheels_declare(tmp_path: Path) -> None:
    file, folder = bundle(tmp_path / "b.tar", wheel()), tmp_path / "revision"
    folder.mkdir()
    (folder / "left").touch()
    program.install(str(file), str(folder), "sha256:abc")
    assert subprocess.run([folder / "bin/hello"], capture_output=True, text=True).stdout == "hello\n"
    assert (folder / "REVISION").read_text() == "sha256:abc\n"
    assert list(folder.glob("lib/python3*/site-packages/__pycache__/greeting.*.pyc")) != []
    assert not (folder / "left").exists()
    assert not file.exists()


@pytest.mark.parametrize("brings", [True, False])
def test_a_bundle_waits_for_its_engine_to_be_installed(tmp_path: Path, brings: bool) -> None:
    file = bundle(tmp_path / "b.tar", wheel(), engine=brings)
    program.install(str(file), str(tmp_path / "revision"), "sha256:abc", "engine")
    assert file.exists() == brings


def test_a_wheel_that_is_not_the_approved_one_leaves_no_revision(tmp_path: Path) -> None:
    file = bundle(tmp_path / "b.tar", wheel(), stored=wheel(more="x"))
    with pytest.raises(SystemExit, match=r"greeting-1-py3-none-any.whl of the bundle is not what bundle.json says"):
        program.install(str(file), str(tmp_path / "revision"), "sha256:abc")
    assert not (tmp_path / "revision/REVISION").exists()


def test_a_wheel_that_is_more_than_packages_is_refused(tmp_path: Path) -> None:
    file = bundle(tmp_path / "b.tar", wheel(**{"greeting-1.data/scripts/run": "x"}))
    with pytest.raises(SystemExit, match="only pip knows to install"):
        program.install(str(file), str(tmp_path / "revision"), "sha256:abc")
