"""What gate G sees of a router from the operator's machine, through a tunnel."""

import http.client
import json
import os
import shlex
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from narwhal.deploy.errors import DeployError
from narwhal.deploy.evidence import Failure
from narwhal.deploy.opening import Opened
from narwhal.deploy.tunnel import Tunnel, TunnelWish, open_tunnel

KEY_VARIABLE = "NARWHAL_API_KEY"
_READY_S = 60.0
_ANSWER_S = 60.0
_OK, _UNAUTHORIZED = 200, 401
_TAIL = 4000


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer over HTTP."""

    status: int
    body: bytes

    def text(self) -> str:
        """The first of it, in one line."""
        return " ".join(self.body.decode(errors="replace").split())[:200]


def check_serving(
    opened: Opened, load: str | None, say: Callable[[str], None], *, standby: bool = False
) -> tuple[dict[str, Any], Failure | None]:
    """Ask the router that leads for readiness, metrics and one completion, then run `load`; what was seen, what failed.

    `standby`: it is the standby that leads, since a primary that was restarted has handed over to it.
    """
    seen: dict[str, Any] = {}
    routers = opened.declared.routers
    try:
        with open_tunnel(opened, TunnelWish(standby)) as tunnel:
            _ready(tunnel, seen)
            _metrics(tunnel, seen)
            _completion(opened, tunnel, seen)
            if load:
                say(f"through the tunnel: {load}")
                _load(load, tunnel, seen)
    except DeployError as error:
        host = routers.standby if standby else routers.primary
        return seen, Failure(host=host, task="Ask through the tunnel", message=error.message, next_step=error.hint)
    return seen, None


def declared_load(opened: Opened) -> str | None:
    """The command that measures the points which the fleet file declares; None: it declares none."""
    if opened.declared.benchmark is None:
        return None
    out = opened.directory / "bench"
    argv = [sys.executable, "-m", "narwhal", "bench", str(opened.file), "--out", str(out), "--again"]
    return shlex.join(argv)  # --again: the gate asks how it is now, whatever was measured before


def ask(url: str, path: str, body: object = None, *, key: str = "") -> Answer:
    """GET, or POST with a JSON body. Raises `DeployError` when no answer comes.

    Certificates are not verified: the tunnel's other end is, by its host key, and a name in a certificate is not ours.
    """
    parts = urlsplit(url)
    if parts.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=_ANSWER_S, context=context
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_ANSWER_S)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.read())
    except (OSError, http.client.HTTPException) as error:
        hint = "narwhal-router.service on the router's host has the reason: journalctl -u narwhal-router"
        raise DeployError("serving", f"{path}: no answer through the tunnel: {error}", hint=hint) from None
    finally:
        connection.close()


def _ready(tunnel: Tunnel, seen: dict[str, Any]) -> None:
    """Wait until the router says that it can serve."""
    deadline = time.monotonic() + _READY_S
    while True:
        answer = ask(tunnel.url, "/ready")
        if answer.status == _OK:
            seen["ready"] = json.loads(answer.body)
            return
        if time.monotonic() > deadline or tunnel.ended():
            hint = f"narwhal status --router {tunnel.admin_url} through `narwhal tunnel` says why"
            raise DeployError("serving", f"the router is not ready: {answer.text()}", hint=hint)
        time.sleep(1.0)


def _metrics(tunnel: Tunnel, seen: dict[str, Any]) -> None:
    answer = ask(tunnel.admin_url, "/metrics", key=os.environ.get("NARWHAL_ADMIN_TOKEN", ""))
    if answer.status == _UNAUTHORIZED:
        seen["metrics"] = "asks for a token: set NARWHAL_ADMIN_TOKEN to have them read"
        return
    families = sum(line.startswith(b"# TYPE narwhal_") for line in answer.body.splitlines())
    if answer.status != _OK or not families:
        hint = "is routers.admin.port another program's?"
        raise DeployError("serving", f"/metrics answers {answer.status} without a metric of narwhal", hint=hint)
    seen["metrics"] = families


def _completion(opened: Opened, tunnel: Tunnel, seen: dict[str, Any]) -> None:
    """One completion of a few tokens; where tenants are declared and no key is given, that one is asked for."""
    fleet = opened.declared
    key = os.environ.get(KEY_VARIABLE, "")
    body = {"model": fleet.model.name, "prompt": "Narwhals live in", "max_tokens": 4, "temperature": 0}
    answer = ask(tunnel.url, "/v1/completions", body, key=key)
    if answer.status == _UNAUTHORIZED and fleet.routers.tenants and not key:
        seen["completion"] = f"asks for a tenant's key: set {KEY_VARIABLE} to have one made"
        return
    try:
        tokens = json.loads(answer.body)["usage"]["completion_tokens"]
    except (ValueError, KeyError, TypeError):
        tokens = 0
    if answer.status != _OK or not tokens:
        hint = f"narwhal why --router {tunnel.admin_url} through `narwhal tunnel` says what became of it"
        raise DeployError("serving", f"a completion is answered {answer.status}: {answer.text()}", hint=hint)
    seen["completion"] = {"tokens": tokens}


def _load(command: str, tunnel: Tunnel, seen: dict[str, Any]) -> None:
    """Run the command that declares the load, with the router's addresses in its environment."""
    environment = os.environ | addresses(tunnel)
    done = subprocess.run(shlex.split(command), env=environment, capture_output=True, text=True, check=False)
    seen["load"] = {"command": command, "exit_code": done.returncode, "output": (done.stdout + done.stderr)[-_TAIL:]}
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        hint = "the gate's evidence has the end of its output"
        raise DeployError("load", f"{command}: exit code {done.returncode}: {(said or [''])[-1]}", hint=hint)


def addresses(tunnel: Tunnel) -> dict[str, str]:
    """What programs find the router by."""
    return {"NARWHAL_ROUTER": tunnel.admin_url, "NARWHAL_URL": tunnel.url, "OPENAI_BASE_URL": f"{tunnel.url}/v1"}
