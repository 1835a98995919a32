"""`narwhal logs`: the unit that is meant, over a pinned way, and nothing left behind after Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from narwhal.cli.verbs import run_app
from narwhal.deploy import open_run
from narwhal.diagnose.logs import NoLogError, Place, Wish, file_script, names, place_of, unit_script
from tests.deploy.conftest import FLEET
from tests.router.harness import eventually


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fleet, and an `ssh` that writes down how it is called and says a line."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    ssh = tmp_path / "bin/ssh"
    ssh.parent.mkdir()
    ssh.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "open(os.environ['SSH_LOG'], 'w').write(json.dumps(sys.argv[1:]))\nprint('a line')\n"
        "sys.exit(int(os.environ.get('SSH_CODE', '0')))\n"
    )
    ssh.chmod(0o700)
    monkeypatch.setenv("PATH", f"{ssh.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SSH_LOG", str(tmp_path / "asked"))
    return file


def test_each_process_has_its_unit(fleet: Path) -> None:
    expanded = open_run(fleet).wanted.expanded
    assert names(expanded) == ["router", "a/0", "a/1", "b/0", "b/1"]
    assert place_of("router", expanded) == Place("edge", "narwhal-router.service")
    assert place_of("b/1", expanded) == Place("b", "narwhal-engine@1.service")
    assert place_of("a/0/attest", expanded) == Place("a", "narwhal-attest@0.service")
    for name in ("standby", "c/0", "a", "a/0/attested"):
        with pytest.raises(NoLogError, match="there are router, a/0"):
            place_of(name, expanded)


def test_a_unit_is_read_over_ssh_with_pinned_keys_alone(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["logs", "b/1", "--fleet", str(fleet), "--since", "10m", "--format", "json"]
    assert run_app(asked) == 0
    assert json.loads(capsys.readouterr().out)["data"]["lines"] == ["a line"]
    argv = json.loads((tmp_path / "asked").read_text())
    assert "StrictHostKeyChecking=yes" in argv
    assert argv[-2] == "ops@10.0.0.2"
    assert argv[-1] == unit_script("narwhal-engine@1.service", Wish(since_s=600.0))
    assert "--since=-600s -f" not in argv[-1]
    monkeypatch.setenv("SSH_CODE", "255")
    assert run_app(asked) == 4
    assert run_app(["logs", "b/7", "--fleet", str(fleet)]) == 2
    assert run_app(["logs", "router", "--fleet", str(fleet), "-f", "--format", "json"]) == 2


@pytest.mark.e2e
def test_what_follows_ends_with_its_standard_input(tmp_path: Path) -> None:
    """As on a host when ssh goes, whatever took it away."""
    log = tmp_path / "router.log"
    log.write_text("a line\n")
    process = subprocess.Popen(
        ["sh", "-c", file_script(log, Wish(follow=True))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "a line\n"
    process.stdin.close()
    assert process.stdout.read() == "", "its end: nobody holds it open any more"
    assert process.wait(60) != 0


@pytest.mark.e2e
def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    log = tmp_path / "dev/default/log/router.log"
    log.parent.mkdir(parents=True)
    log.write_text("a line\n")
    (tmp_path / "dev/default/instance.json").write_text("{}")
    process = subprocess.Popen(
        [sys.executable, "-m", "narwhal", "logs", "router", "-f"],
        env=os.environ | {"NARWHAL_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "a line\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    eventually(lambda: not _runs(str(log)), "the end of what showed it")


def _runs(word: str) -> bool:
    done = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return any(word in line for line in done.stdout.splitlines())
