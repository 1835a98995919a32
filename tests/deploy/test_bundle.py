"""The bundle: the same bytes from the same wheels, its digest in the fleet file and nowhere else by itself."""

import json
import tarfile
from pathlib import Path

import pytest

from narwhal.deploy import approving, bundle
from narwhal.deploy.bundle import BundleWish, file_digest, make_bundle
from narwhal.deploy.errors import DeployError
from narwhal.deploy.opening import open_run
from narwhal.deploy.wheelhouse import Source, Target
from narwhal.documents import problems
from tests.deploy.wheels import make_wheel
from tests.fleet.fleets import BASE

REVISION = "sha256:" + "d" * 64


@pytest.fixture
def wish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BundleWish:
    """Wheels that lie in a folder, with pip out of the way."""

    def own(folder: Path) -> Path:
        return make_wheel(folder, "narwhal_inference", requires=["ansible-core>=2", "dep"])

    def fetched(requirements: list[str], _target: Target, _source: Source, into: Path) -> list[Path]:
        return [make_wheel(into, text.partition("=")[0]) for text in requirements]

    monkeypatch.setattr(bundle, "own_wheel", own)
    monkeypatch.setattr(bundle, "collect", fetched)
    return BundleWish(Target("3.11", "x86_64"), Source(), engine="vllm==0.26.0")


def said(_text: str) -> None:
    """Nobody listens."""


def test_the_bundle_holds_wheels_requirements_and_their_digests(wish: BundleWish, tmp_path: Path) -> None:
    path = tmp_path / "out" / "bundle.tar"
    assert make_bundle(wish, path, said) == file_digest(path)
    with tarfile.open(path) as archive:
        names = archive.getnames()
        found = {name: archive.extractfile(name).read() for name in names}  # type: ignore[union-attr]
        assert {(info.mtime, info.uid, info.mode) for info in archive} == {(0, 0, 0o644)}
    assert names == sorted(names)
    document = json.loads(found.pop("bundle.json"))
    assert problems(document, "bundle") == []
    assert set(document["files"]) == set(found)
    of_narwhal = found["requirements.txt"].decode()
    assert [line.split("==")[0] for line in of_narwhal.splitlines()] == ["dep", "narwhal-inference"]
    assert found["requirements-engine.txt"].startswith(b"vllm==1.0 --hash=sha256:")
    assert "wheelhouse/narwhal_inference-1.0-py3-none-any.whl" in names


def test_a_failure_leaves_the_bundle_that_was_there(
    wish: BundleWish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bundle.tar"
    path.write_text("before")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundle, "_add", fail)
    with pytest.raises(OSError, match="No space"):
        make_bundle(wish, path, said)
    assert [entry.name for entry in tmp_path.iterdir()] == ["bundle.tar"]


def test_a_revision_is_written_into_the_fleet_file_and_its_mode_kept(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(BASE)
    file.chmod(0o600)
    approving.approve(open_run(file), REVISION, write=True, deployed=True)
    assert open_run(file).declared.metadata.revision == REVISION
    assert file.stat().st_mode & 0o777 == 0o600
    assert "already" in approving.approve(open_run(file), REVISION, write=True, deployed=True)


def test_without_an_approved_revision_the_frozen_one_counts_everywhere(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(BASE)
    approving.approve(open_run(file), REVISION, write=False, deployed=True)
    opened = open_run(file)
    assert file.read_text() == BASE
    assert opened.wanted.fleet.metadata.revision == REVISION
    assert f'revision: "{REVISION}"' in opened.wanted.text
    file.write_text(BASE.replace("{name: lab}", "{name: lab, revision: mine}"))
    assert open_run(file).wanted.fleet.metadata.revision == "mine"


def test_a_bundle_that_is_not_the_approved_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(BASE)
    approving.approve(open_run(file), REVISION, write=True, deployed=True)
    opened = open_run(file)
    with pytest.raises(DeployError, match="there is no bundle"):
        approving.check_bundle(opened)
    opened.bundle.parent.mkdir(parents=True, exist_ok=True)
    opened.bundle.write_bytes(b"another")
    with pytest.raises(DeployError, match=f"approved is {REVISION}"):
        approving.check_bundle(opened)
    approving.approve(opened, file_digest(opened.bundle), write=True, deployed=True)
    approving.check_bundle(open_run(file))
