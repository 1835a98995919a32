"""Running `narwhal` as a user does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def narwhal(*arguments: str, home: Path, timeout_s: float = 240.0) -> dict[str, Any]:
    """The `CommandResult` of a verb, with its exit code checked against it."""
    argv = [sys.executable, "-m", "narwhal", *arguments, "--format", "json"]
    done = subprocess.run(argv, env=environment(home), capture_output=True, text=True, timeout=timeout_s)
    assert done.stdout, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["exit_code"] == done.returncode, done.stderr
    return result


def environment(home: Path) -> dict[str, str]:
    """An environment whose dev instance and temporary files lie in `home`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NARWHAL_")}
    return {**kept, "NARWHAL_HOME": str(home), "TMPDIR": str(home)}


def processes_below(folder: Path) -> list[str]:
    """Command lines of the processes whose working directory is in `folder`: what an instance there has left."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(process.joinpath("cwd").readlink()).startswith(str(folder)):
                found.append(process.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return [line for line in found if line]  # a zombie has no command line
