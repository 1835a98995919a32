"""An engine's unit that does not stay up is told from one that is still coming up."""

from pathlib import Path

import pytest

from narwhal.engine.examine import ExamineError, examine
from narwhal.engine.unit import Unit
from tests.engine.test_examine import launch_of

JOURNAL = r"""
(EngineCore pid=9) ValueError: block-size 7 is not supported
(APIServer pid=8) RuntimeError: Engine core initialization failed. See root cause above.
narwhal-engine@0.service: Scheduled restart job
"""


class Systemd:
    """Programs that answer as systemd's would."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.is_told("activating", 3)
        self._program("journalctl", f"cat <<'END'{JOURNAL}END")

    def is_told(self, state: str, restarts: int) -> None:
        self._program("systemctl", f"echo ActiveState={state}; echo NRestarts={restarts}")

    def _program(self, name: str, script: str) -> None:
        path = self._folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Systemd(tmp_path)


def test_it_is_waited_for_until_it_has_ended_twice_or_failed(systemd: Systemd) -> None:
    unit = Unit("narwhal-engine@0.service")
    assert unit.trouble() is None
    systemd.is_told("activating", 4)
    assert unit.trouble() is None
    systemd.is_told("active", 5)
    assert unit.trouble() == "ValueError: block-size 7 is not supported"
    systemd.is_told("failed", 3)
    assert unit.trouble() == "ValueError: block-size 7 is not supported"


def test_its_last_words_end_the_examination(systemd: Systemd, tmp_path: Path) -> None:
    unit = Unit("narwhal-engine@0.service")
    systemd.is_told("failed", 3)
    with pytest.raises(ExamineError, match="does not stay up: ValueError: block-size 7") as raised:
        examine(launch_of(tmp_path), deadline_s=600, unit=unit)
    assert raised.value.next_step == "see why: journalctl -u narwhal-engine@0 -n 50"


def test_where_there_is_no_systemd_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Unit("narwhal-engine@0.service").trouble() is None
