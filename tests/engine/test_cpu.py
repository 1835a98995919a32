"""Preparing vLLM for the CPU: made once, again when it was interrupted, and with a reason when it cannot be."""

from pathlib import Path

import pytest

from narwhal.engine import cpu
from narwhal.engine.cpu import NotInstallableError, PrepareError, prepare


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would be run; the model's command makes its folder."""
    ran: list[list[str]] = []

    def run(argv: list[str], purpose: str) -> None:
        ran.append(argv)
        if "model" in purpose:
            Path(argv[-1]).mkdir()

    monkeypatch.setattr(cpu, "_run", run)
    return ran


def test_environment_and_model_are_made_once(tmp_path: Path, commands: list[list[str]]) -> None:
    engine = prepare(lambda text: None, tmp_path)
    assert [argv[1:3] for argv in commands[:2]] == [["-m", "venv"], ["-m", "pip"]]
    assert "--no-deps" in commands[1]
    assert commands[2][0] == str(engine.python)
    assert engine.model.is_dir()
    assert prepare(lambda text: None, tmp_path) == engine
    assert len(commands) == 3


def test_pins_that_do_not_resolve_say_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: list[str], purpose: str) -> None:
        if "pip" in argv:
            raise PrepareError("cannot install vLLM: ERROR: No matching distribution found for torch==2.13.0+cpu")

    monkeypatch.setattr(cpu, "_run", run)
    with pytest.raises(NotInstallableError, match=r"torch==2\.13\.0\+cpu.*\n.*PIP_EXTRA_INDEX_URL|PIP_EXTRA_INDEX_URL"):
        prepare(lambda text: None, tmp_path)


def test_an_installation_that_fails_otherwise_is_no_missing_pin_and_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: list[list[str]]
) -> None:
    well = cpu._run

    def fail(argv: list[str], purpose: str) -> None:
        raise PrepareError("cannot install vLLM: ERROR: no space left on device")

    monkeypatch.setattr(cpu, "_run", fail)
    with pytest.raises(PrepareError, match="no space left"):
        prepare(lambda text: None, tmp_path)
    monkeypatch.setattr(cpu, "_run", well)
    assert prepare(lambda text: None, tmp_path).model.is_dir()


def test_too_little_disk_is_said_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: list[list[str]]
) -> None:
    monkeypatch.setattr(cpu, "_ROOM_BYTES", 1 << 60)
    with pytest.raises(PrepareError, match="GB free"):
        prepare(lambda text: None, tmp_path)
    assert commands == []


def test_a_command_that_fails_is_told_with_its_last_words() -> None:
    with pytest.raises(PrepareError, match=r"cannot try: last words"):
        cpu._run(["sh", "-c", "echo last words; exit 3"], "try")
