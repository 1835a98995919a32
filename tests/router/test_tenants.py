"""API keys: who comes in, who does not, and what becomes of the key."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from narwhal.cli.app import run_app
from narwhal.cli.verbs import run_app as _verbs  # noqa: F401  (declares the verbs)
from narwhal.fleet.model import Tenant
from narwhal.router.door import RefusedError, parse
from narwhal.router.errors import ServeError
from narwhal.router.tenants import DEFAULT, DeniedError, Keys, new_key, read_keys
from tests.router.harness import FakeEngine, Router, routing


def written(path: Path, key: str) -> dict[str, str]:
    path.write_text(key + "\n")
    path.chmod(0o600)
    return {"file": str(path)}


def tenant(name: str, *keys: dict[str, str], **more: Any) -> Tenant:
    return Tenant.model_validate({"name": name, "keys": list(keys), **more})


def denied(keys: Keys, header: bytes | None) -> DeniedError:
    with pytest.raises(DeniedError) as caught:
        keys.tenant(header)
    return caught.value


def test_without_tenants_nobody_needs_a_key() -> None:
    keys = read_keys([], "m")
    assert keys.tenant(None) == keys.tenant(b"Bearer anything") == DEFAULT


def test_a_key_names_its_tenant_and_two_are_valid_while_rotating(tmp_path: Path) -> None:
    old, new, other = new_key(), new_key(), new_key()
    keys = read_keys(
        [
            tenant("a", written(tmp_path / "1", old), written(tmp_path / "2", new)),
            tenant("b", written(tmp_path / "3", other)),
        ],
        "m",
    )
    names = [keys.tenant(f"Bearer {key}".encode()) for key in (old, new, other)]
    assert names == ["a", "a", "b"]
    assert keys.tenant(f"bearer  {old} ".encode()) == "a"


def test_missing_and_wrong_keys_are_401(tmp_path: Path) -> None:
    key = new_key()
    keys = read_keys([tenant("a", written(tmp_path / "1", key))], "m")
    assert (denied(keys, None).status, denied(keys, None).code) == (401, "missing_api_key")
    for header in (b"", b"Bearer", b"Bearer " + new_key().encode(), f"Basic {key}".encode(), key.encode()):
        assert (denied(keys, header).status, denied(keys, header).code) == (401, "invalid_api_key")


def test_disabled_tenants_and_other_models_are_403(tmp_path: Path) -> None:
    first, second = new_key(), new_key()
    keys = read_keys(
        [
            tenant("a", written(tmp_path / "1", first), disabled=True),
            tenant("b", written(tmp_path / "2", second), models=["another"]),
        ],
        "m",
    )
    assert (denied(keys, f"Bearer {first}".encode()).status, denied(keys, f"Bearer {second}".encode()).code) == (
        403,
        "model_not_allowed",
    )


def test_the_key_itself_is_not_kept(tmp_path: Path) -> None:
    key = new_key()
    keys = read_keys([tenant("a", written(tmp_path / "1", key))], "m")
    assert key not in repr(vars(keys))
    assert key not in str(denied(keys, f"Basic {key}".encode()))


def test_keys_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    key = new_key()
    short, same, copy = written(tmp_path / "1", "hunter2"), written(tmp_path / "2", key), written(tmp_path / "3", key)
    with pytest.raises(ServeError, match=r"tenants\[0\].keys\[0\].*narwhal keys new a"):
        read_keys([tenant("a", short)], "m")
    with pytest.raises(ServeError, match=r"tenants\[1\].keys\[0\]: tenant a has the same key"):
        read_keys([tenant("a", same), tenant("b", copy)], "m")
    with pytest.raises(ServeError, match="NO_SUCH_KEY"):
        read_keys([tenant("a", {"env": "NO_SUCH_KEY"})], "m")


def test_keys_are_long_random_and_of_letters_and_digits() -> None:
    made = {new_key() for _ in range(100)}
    assert len(made) == 100
    assert all(re.fullmatch(r"nw-[0-9A-Za-z]{43}", key) for key in made)


def test_the_verb_writes_a_key_that_only_its_owner_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "research"
    assert run_app(["keys", "new", "research", "--out", str(path), "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["data"]["reference"] == {"file": str(path)}
    assert printed["data"]["key"] is None
    assert path.stat().st_mode & 0o777 == 0o600
    keys = read_keys([tenant("research", {"file": str(path)})], "m")
    assert keys.tenant(f"Bearer {path.read_text().strip()}".encode()) == "research"
    assert run_app(["keys", "new", "research", "--out", str(path)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_the_verb_prints_a_key_once_and_says_where_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["keys", "new", "lab-2"]) == 0
    text = capsys.readouterr().out
    assert re.match(r"nw-[0-9A-Za-z]{43}\n", text)
    assert "keys: [{env: NARWHAL_LAB_2_KEY}]" in text
    assert run_app(["keys", "new", "Lab 2"]) == 2


def asked(**body: Any) -> Any:
    return parse("/v1/completions", json.dumps({"prompt": "x", **body}).encode(), "m", frozenset()).priority


def test_a_body_may_name_a_priority() -> None:
    assert [asked(), asked(priority=None), asked(priority=-3), asked(priority="batch")] == [None, None, None, "batch"]
    for wrong in ("urgent", True, 1.5, ["batch"]):
        with pytest.raises(RefusedError) as caught:
            asked(priority=wrong)
        assert (caught.value.status, caught.value.param) == (400, "priority")


def complete(router: Router, key: str | None) -> tuple[int, dict[str, str], Any]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    status, got, body = router.send("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2}, headers)
    return status, got, json.loads(body)


def test_a_router_tells_tenants_apart(tmp_path: Path, pair: tuple[FakeEngine, FakeEngine]) -> None:
    key, off = new_key(), new_key()
    files = [written(tmp_path / name, text)["file"] for name, text in (("a", key), ("b", off))]
    tenants = (
        f"\n  tenants: [{{name: lab, keys: [{{file: {files[0]}}}], tokens_per_minute: 1000}},"
        f" {{name: old, keys: [{{file: {files[1]}}}], disabled: true}}]"
    )
    with routing(tmp_path, list(pair), tenants=tenants) as router:
        status, headers, body = complete(router, None)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert [complete(router, each)[0] for each in (new_key(), off, key)] == [401, 403, 200]
        assert router.send("GET", "/v1/models")[0] == 401
        assert router.send("GET", "/health")[0] == 200
        (lab, _) = router.state()["tenants"]
        assert (lab["name"], lab["open"]) == ("lab", 0)
        assert lab["tokens"] > 0
        metrics = router.send("GET", "/metrics", admin=True)[2].decode()
        assert 'narwhal_tenant_requests_ended_total{code="",outcome="served",tenant="lab"} 1.0' in metrics
        assert 'narwhal_denied_total{code="invalid_api_key"} 1.0' in metrics
        after = new_key()
        written(tmp_path / "b", off + "x")
        written(tmp_path / "a", after)
        assert router.send("POST", "/narwhal/reload", {}, admin=True)[0] == 200  # the file is the same, its key is not
        assert [complete(router, each)[0] for each in (key, after)] == [401, 200]
        while (answer := complete(router, after))[0] == 200:
            pass
        status, headers, body = answer
        assert (status, body["error"]["code"]) == (429, "tenant_tokens")
        assert 1 <= int(headers["retry-after"]) <= 60
    rows = [row["tenant"] for row in router.rows("request")]
    assert set(rows) == {"lab"}
    assert not any(key in file.read_text(errors="replace") for file in (tmp_path / "state").rglob("*.jsonl"))
    assert key not in router.log.read_text()
