"""Stands in for `ansible-playbook`: tells events, leaves facts, fails or hangs where `NARWHAL_FAKE` says so.

`NARWHAL_FAKE` is JSON, by playbook: {"changed": [HOSTS], "facts": {HOST: {…}}, "stop": {"host", "message", "status"},
"hang": true, "broken": true}.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import yaml


def main() -> int:
    argv = sys.argv[1:]
    playbook = argv[0]
    variables = json.loads(argv[argv.index("--extra-vars") + 1])
    hosts = list(yaml.safe_load(Path("inventory.yml").read_text())["all"]["children"]["fleet"]["hosts"])
    if "--limit" in argv:
        hosts = [host for host in hosts if host in argv[argv.index("--limit") + 1].split(",")]
    told = json.loads(os.environ.get("NARWHAL_FAKE", "{}")).get(playbook, {})
    record = {"playbook": playbook, "hosts": hosts, "variables": variables, "check": "--check" in argv}
    with Path(os.environ["NARWHAL_FAKE_LOG"]).open("a") as log:
        log.write(json.dumps(record) + "\n")
    if told.get("broken"):
        sys.stdout.write("some words\nERROR! the role 'x' was not found\n")
        return 1
    events = open(os.environ["NARWHAL_EVENTS"], "a", buffering=1)  # noqa: SIM115 - open until the end, like the plugin's

    def tell(event: str, **more: object) -> None:
        events.write(json.dumps({"event": event, "gate": playbook, **more}) + "\n")

    tell("playbook")
    tell("play", play="p")
    tell("task", task="Look around")
    if told.get("hang"):
        print("hanging", flush=True)
        signal.signal(signal.SIGINT, lambda *_: sys.exit(99))
        Path(os.environ["NARWHAL_FAKE_LOG"]).with_suffix(".hangs").touch()
        while True:
            time.sleep(60)
    stop = told.get("stop")
    for host in hosts:
        tell(
            "changed" if host in told.get("changed", ()) else "ok", task="Look around", host=host, diff=told.get("diff")
        )
    tell("task", task="Verify")
    for host in hosts:
        if stop and stop["host"] == host:
            tell(stop.get("status", "failed"), task="Verify", host=host, message=stop["message"])
        else:
            tell("ok", task="Verify", host=host)
            Path(variables["narwhal_evidence_dir"], f"{host}.json").write_text(
                json.dumps(told.get("facts", {}).get(host, {"seen": playbook}))
            )
    unreachable = bool(stop) and stop.get("status") == "unreachable"
    stopped = stop["host"] if stop else None
    tell("stats", hosts={
        host: {
            "ok": 2,
            "changed": int(host in told.get("changed", ())),
            "failures": int(host == stopped and not unreachable),
            "unreachable": int(host == stopped and unreachable),
        }
        for host in hosts
    })  # fmt: skip
    return 0 if not stop else 4 if unreachable else 2


if __name__ == "__main__":
    sys.exit(main())
