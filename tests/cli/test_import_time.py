"""Importing the command line is cheap: heavy imports wait until they are used."""

import json
import subprocess
import sys

HEAVY = ("uvloop", "httptools", "jsonschema", "ruamel.yaml", "prometheus_client", "rich.console", "ansible", "vllm")


def test_importing_the_cli_loads_nothing_heavy() -> None:
    script = "import sys, json, narwhal.cli.verbs; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout)
    assert [name for name in HEAVY if name in loaded] == []
    assert [name for name in loaded if name.startswith(("narwhal.router", "narwhal.engine", "narwhal.simulate"))] == []
