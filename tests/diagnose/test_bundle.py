"""The bundle: secrets planted in every place that one could stand in are in no byte of it; the rest is said."""

import http.server
import io
import json
import os
import stat
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from narwhal.cli.verbs import run_app
from narwhal.diagnose import bundle
from narwhal.diagnose.bundle import make_bundle
from narwhal.diagnose.gather import Found, NothingError, Source
from narwhal.diagnose.redact import Asked, Redactor
from narwhal.documents import problems

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPLANTEDhostkeyPLANTED0123456789abcdef"
PLANTED = {
    "file": "PLANTED-from-file-4f9d2c",
    "variable": "PLANTED-from-variable-8a1b",
    "hf": "hf_PLANTEDhuggingface0123",
    "bearer": "PLANTEDbearer.token-xyz",
    "basic": "UExBTlRFRDpwYXNzd29yZA==",
    "userinfo": "planteduser:plantedpass",
    "prompt": "the PLANTED prompt of a patient",
    "output": "the PLANTED answer of a model",
    "host": "planted-gpu-7",
    "address name": "planted-gpu-7.prod.acme-planted.com",
    "user": "plantedops",
    "ipv4": "10.99.88.77",
    "fabric": "192.168.231.41",
    "ipv6": "2001:db8:77:88::99",
    "tenant": "planted-tenant",
    "caller": "planted-caller",
    "fleet": "planted-fleet",
    "label": "planted-datacentre",
    "request id": "planted-customer-4711",
    "mail": "planted.person@acme-planted.org",
    "aws": "AKIAPLANTED0123456789",
    "openai": "sk-PLANTED0123456789abcdef",
    "jwt": "eyJhbGciPLANTED.eyJzdWIiPLANTED.c2lnPLANTED",
    "pem": "MIIEvPLANTEDprivatekeyPLANTED",
    "host key": KEY.split()[1],
    "cookie": "session=PLANTEDcookie",
    "home": "planted-home-user",
    "mac": "de:ad:be:ef:77:88",
    "engine variable": "PLANTED-engine-env",
}
FLEET = f"""\
apiVersion: narwhal/v1
kind: Fleet
metadata: {{name: {PLANTED["fleet"]}, labels: {{dc: {PLANTED["label"]}}}}}
model: {{name: m, path: /models/m}}
slo: {{ttft_s: 2.0, tpot_s: 0.05}}
# a comment with {PLANTED["openai"]}
hosts:
  - name: {PLANTED["host"]}
    ssh: {{address: {PLANTED["address name"]}, user: {PLANTED["user"]}, host_key: {KEY}}}
    fabric: {{address: {PLANTED["fabric"]}}}
    engines: 2
engines:
  runtime: {{kind: simulated}}
  max_num_seqs: 64
  api_key: {{env: NARWHAL_PLANTED}}
  env: {{SOME_SWITCH: {PLANTED["engine variable"]}, HF_TOKEN: {{file: SECRET_FILE}}}}
split: {{prefill: 1, decode: 1}}
routers:
  primary: {PLANTED["host"]}
  tenants: [{{name: {PLANTED["tenant"]}, keys: [{{file: SECRET_FILE}}]}}]
  admin: {{tokens: [{{name: {PLANTED["caller"]}, scope: read, token: {{file: SECRET_FILE}}}}]}}
"""
ENGINE = f"{PLANTED['host']}/0"
TEXTS = [
    f"Authorization: Bearer {PLANTED['bearer']}",
    f"authorization='Basic {PLANTED['basic']}'",
    f"GET https://{PLANTED['userinfo']}@{PLANTED['address name']}:8000/v1",
    f"from [{PLANTED['ipv6']}]:5 and {PLANTED['ipv4']}:99",
    f"tokens {PLANTED['hf']} {PLANTED['aws']}"
    f" {PLANTED['openai']} {PLANTED['jwt']} {PLANTED['file']} {PLANTED['variable']}",
    f'prompt: \'{PLANTED["prompt"]}\', "content": "{PLANTED["output"]}"',
    f"-----BEGIN PRIVATE KEY-----\n{PLANTED['pem']}\n-----END PRIVATE KEY-----",
    f"Set-Cookie: {PLANTED['cookie']}; mail {PLANTED['mail']} /home/{PLANTED['home']}/x {PLANTED['mac']} {KEY}",
    f"engine {ENGINE} of {PLANTED['fleet']} {PLANTED['label']} for {PLANTED['tenant']}",
    f"by {PLANTED['caller']}, {PLANTED['user']}",
    f"SOME_SWITCH={PLANTED['engine variable']}",
]
ROWS: list[dict[str, Any]] = [
    {"type": "start", "t": 1.0, "utc": "2026-11-30T12:00:00Z", "fleet": PLANTED["fleet"], "version": "1"},
    {"type": "request", "request": 1, "id": PLANTED["request id"], "tenant": PLANTED["tenant"], "arrived_t": 2.0,
     "total_s": 1.0, "outcome": "served", "prefill_engine": ENGINE, "decode_engine": ENGINE},
    {"type": "engine", "t": 3.0, "engine": ENGINE, "change": "ejected", "reason": " ".join(TEXTS)},
    {"type": "reload", "t": 3.0, "utc": "2026-11-30T12:00:02Z", "by": PLANTED["caller"], "before": "", "digest": "",
     "applied": [f"engines.overrides.{ENGINE}.url"], "restart": []},
]  # fmt: skip
ENGINE_LOG = [
    *(f"(EngineCore pid=7) ERROR 11-30 12:00:00 [core.py:77] {line}" for text in TEXTS for line in text.splitlines()),
    f"INFO 11-30 12:00:00 [logger.py:40] Received request: prompt {PLANTED['prompt']}, params",
    f"WARNING 11-30 12:00:00 [x.py:1] {PLANTED['output']} could not be parsed",
    "Traceback (most recent call last):",
    f'  File "/home/{PLANTED["home"]}/vllm/core.py", line 7, in step',
    f"    raise ValueError({PLANTED['prompt']!r})",
    f"ValueError: {PLANTED['prompt']}",
    PLANTED["output"],
    "INFO 11-30 12:00:01 [loggers.py:1] Application startup complete.",
]
ROUTER_LOG = [
    *(f"2026-11-30 12:00:00,001 WARNING {line}" for text in TEXTS for line in text.splitlines()),
    PLANTED["prompt"],
    f"KeyError: {PLANTED['output']!r}",
    f"2026-11-30 12:00:00,002 INFO {ENGINE} moves to decode (decision 4, epoch 2)",
]


@pytest.fixture
def router() -> Iterator[str]:
    """An admin listener whose every answer has all of it in it."""
    state = {
        "fleet": PLANTED["fleet"],
        "hold": {"on": True, "reason": " ".join(TEXTS)},
        "tenants": [{"name": PLANTED["tenant"]}],
        "engines": [
            {"id": ENGINE, "url": f"http://{PLANTED['ipv4']}:8100", "reason": TEXTS[2], "prompt": PLANTED["prompt"]}
        ],
        "messages": [{"role": "user", "content": PLANTED["prompt"]}],
    }
    labels = f'tenant="{PLANTED["tenant"]}",engine="{ENGINE}",url="{PLANTED["ipv4"]}",note="{PLANTED["hf"]}"'
    metrics = f"narwhal_x{{{labels}}} 7\n"
    links = {"links": [{"producer": ENGINE, "consumer": ENGINE, "reason": " ".join(TEXTS)}], "now_t": 4.0}
    page = {"/narwhal/state": state, "/metrics": metrics, "/narwhal/links": links}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = page.get(self.path, {"changes": [ROWS[2]], "decisions": [], "moves": [], "now_t": 4.0})
            raw = (found if isinstance(found, str) else json.dumps(found)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *args: Any) -> None:
            """Be quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dev instance's folder with all of it in its files, and an `ssh` that answers with it."""
    folder = tmp_path / "instance"
    for name in ("log", "run", "state/journal"):
        (folder / name).mkdir(parents=True)
    secret = folder / "secret"
    secret.write_text(PLANTED["file"] + "\n")
    secret.chmod(0o600)
    (folder / "fleet.yaml").write_text(FLEET.replace("SECRET_FILE", str(secret)))
    (folder / "instance.json").write_text("{}")
    name = PLANTED["host"]
    (folder / f"log/{name}-0.log").write_text("\n".join(ENGINE_LOG) + "\n")
    (folder / "log/router.log").write_text("\n".join(ROUTER_LOG) + "\n")
    launch = {"engine": ENGINE, "env": {"A": PLANTED["hf"]}, "argv": ["--api-key", PLANTED["variable"], TEXTS[2]]}
    (folder / f"run/{name}-0.launch").write_text(json.dumps(launch))
    (folder / "state/journal/journal.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    ssh = tmp_path / "bin/ssh"
    ssh.parent.mkdir()
    facts = {
        "hostname": PLANTED["host"],
        "interfaces": [{"address": PLANTED["ipv6"], "mac": PLANTED["mac"]}],
        "user": "x",
    }
    ssh.write_text(f"#!{sys.executable}\nprint({json.dumps(facts)!r})\n")
    ssh.chmod(0o700)
    monkeypatch.setenv("PATH", f"{ssh.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NARWHAL_PLANTED", PLANTED["variable"])
    monkeypatch.setenv("SOME_API_KEY", PLANTED["basic"])
    return folder / "fleet.yaml"


def unpacked(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        assert {entry.mode for entry in tar if entry.isfile()} == {0o600}
        assert {entry.mode for entry in tar if entry.isdir()} == {0o700}
        assert {(entry.uid, entry.gid, entry.uname, entry.gname) for entry in tar} == {(0, 0, "", "")}
        files = [entry for entry in tar if entry.isfile()]
        return {entry.name.partition("/")[2]: (tar.extractfile(entry) or io.BytesIO()).read() for entry in files}


def made(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], dict[str, bytes]]:
    capsys.readouterr()
    code = run_app(["bundle", *arguments, "--format", "json"])
    answer = json.loads(capsys.readouterr().out)
    archive = Path(answer["artifacts"][0])
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    files = unpacked(archive)
    assert json.loads(files["MANIFEST.json"]) == answer["data"]
    assert problems(answer["data"], "diagnostic-bundle") == []
    raw = archive.read_bytes()
    assert not [name for name, text in PLANTED.items() if text.encode() in raw]
    return code, answer["data"], files


@pytest.mark.e2e
def test_no_planted_secret_is_in_any_byte(
    fleet: Path, router: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, manifest, files = made(capsys, str(fleet), "--router", router, "--hosts", "-o", str(tmp_path / "out") + "/")
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700
    outcomes = {source["name"]: source["outcome"] for source in manifest["sources"]}
    assert set(outcomes.values()) == {"collected"}, outcomes
    assert code == 0
    everything = b"\n".join([*(name.encode() for name in files), *files.values()])
    found = [name for name, text in PLANTED.items() if text.encode() in everything]
    assert found == []
    assert b"PLANTED" not in everything.replace(b"NARWHAL_PLANTED", b""), "nor a part of one"
    assert b"Application startup complete." in everything, "what says nothing of anybody stays"
    assert b"moves to decode (decision 4, epoch 2)" in everything
    state, journal = json.loads(files["router/state.json"]), files["router/journal.jsonl"].splitlines()
    engine = state["engines"][0]["id"]
    assert json.loads(journal[1])["prefill_engine"] == engine, "a name has one pseudonym"
    assert engine.startswith("host-")
    assert f"logs/{engine}.log" in files


@pytest.mark.e2e
def test_pseudonyms_are_of_one_bundle_and_names_stay_when_asked(
    fleet: Path, router: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = [str(fleet), "--router", router]
    engines = []
    for number in range(2):
        _, _, files = made(capsys, *where, "-o", str(tmp_path / f"{number}.tar.gz"))
        engines.append(json.loads(files["router/state.json"])["engines"][0]["id"])
    assert engines[0] != engines[1]
    asked = ["--with-names", "--with-addresses", "--with-messages", "-o", str(tmp_path / "named.tar.gz")]
    _, manifest, files = made(capsys, *where, *asked)
    everything = b"\n".join(files.values())
    assert manifest["kept"] == ["names", "addresses", "messages"]
    for name in ("host", "ipv4", "tenant"):
        assert PLANTED[name].encode() in everything
    for name in ("file", "variable", "hf", "bearer", "basic", "aws", "openai", "jwt", "pem", "host key", "cookie"):
        assert PLANTED[name].encode() not in everything, f"a secret is never asked for: {name}"


@pytest.mark.e2e
def test_with_a_dead_router_the_rest_is_collected_and_what_is_missing_is_said(
    fleet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--router", "http://127.0.0.1:1", "-o", str(tmp_path / "b.tar.gz")]
    code, manifest, files = made(capsys, str(fleet), *where)
    assert code == 3
    told = {source["name"]: source for source in manifest["sources"]}
    for name in ("state", "health", "moves", "decisions", "changes", "links", "metrics"):
        assert (told[name]["outcome"], told[name]["file"]) == ("missing", None)
        assert "Connection refused" in told[name]["reason"]
    assert {told[name]["outcome"] for name in ("fleet", "journal", "log router", "versions")} == {"collected"}
    assert {name for name, one in told.items() if one["outcome"] == "skipped"}, "hosts are not asked without --hosts"
    assert len(files["router/journal.jsonl"].splitlines()) == len(ROWS)
    assert run_app(["bundle", str(fleet), *where]) == 2, "there is one already"


def test_a_source_that_is_slow_large_or_broken_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "LIMIT_BYTES", 1000)
    never = threading.Event()

    def hangs() -> Found:
        never.wait()
        return Found("")

    def nothing() -> Found:
        raise NothingError("it is not there")

    def breaks() -> Found:
        raise ValueError("with text of a user")

    wanted = [
        Source("slow", "slow.txt", hangs, "text"),
        Source("none", "none.txt", nothing, "text"),
        Source("broken", "broken.txt", breaks, "text"),
        Source("large", "large.txt", lambda: Found("x y " * 1000), "text"),
        Source("good", "good.json", lambda: Found({"a": 1})),
    ]
    redactor = Redactor(Asked())
    manifest = make_bundle(wanted, redactor, tmp_path / "b.tar.gz", 60.0, limit_s=3.0)
    never.set()
    assert [(source.outcome, source.reason) for source in manifest.sources] == [
        ("missing", "it took longer than 3 s"),
        ("missing", "it is not there"),
        ("missing", "ValueError while it was read"),
        ("partial", "only its last 1000 bytes"),
        ("collected", ""),
    ]
    assert manifest.complete is False
    assert set(unpacked(tmp_path / "b.tar.gz")) == {"large.txt", "good.json", "MANIFEST.json"}


@pytest.mark.parametrize(
    "text",
    [
        "max_num_batched_tokens=2048 prompt_tokens: 7, kv_bytes_per_token 3, tokens_per_minute: 100",
        "narwhal_tokens_total 7.0",
        "http://127.0.0.1:8001/narwhal/state 12:00:05 vllm==0.26.0",
    ],
)
def test_what_names_nobody_stays(text: str) -> None:
    redactor = Redactor(Asked())
    redactor.learn({"local": "host", "gpu-1": "host"})
    assert redactor.text(text) == text
    assert not redactor.counts
