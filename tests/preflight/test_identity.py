"""Launch digests and attested KV: who is named, and what is only not known."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from narwhal.dev.ports import free_run
from narwhal.engine.render import render_launch
from narwhal.engine.sidecar import handler_of
from narwhal.fleet import EngineSpec, Expanded, open_fleet
from narwhal.preflight.identity import Attested, Sidecars, ask_sidecar, judge_attested, judge_launches, launches
from narwhal.preflight.pairs import Verdict
from tests.router.harness import write_fleet

DIGEST = "sha256:" + "ab" * 32
LAUNCH = "narwhal.launch." + "ab" * 32


def attestation(engine: str, **changed: Any) -> dict[str, Any]:
    """What a sidecar answers, as far as it is read."""
    cache = {"dtype": "auto", "block_tokens": 64, "blocks": 99, "bytes_per_token": 4096, "layout": "LBHNC"}
    top = {"engine": engine, "launch_digest": DIGEST, "compatibility_hash": "c0ffee", "version": "0.32.0"}
    cache |= {name: changed.pop(name) for name in list(changed) if name in cache}
    return top | {"cache": cache, "unknown": {}} | changed


def judged(*told: dict[str, Any]) -> dict[str, Verdict]:
    """The verdicts on engines that tell this."""
    import msgspec

    attested = {one["engine"]: msgspec.convert(one, Attested) for one in told}
    return judge_attested(Sidecars(attested, {"silent": Verdict("SKIP", "no sidecar")}))


# --- launches


@pytest.mark.parametrize(
    ("names", "rendered", "status", "said"),
    [
        (("m", LAUNCH), DIGEST, "ok", "runs launch abababababab"),
        (("m", "narwhal.launch." + "cd" * 32), DIGEST, "FAIL", "cdcdcdcdcdcd, the fleet file renders abababababab"),
        (("m",), DIGEST, "SKIP", "tells no launch"),
        (("m", LAUNCH), None, "SKIP", "a url of its own"),
    ],
)
def test_an_engine_runs_what_the_fleet_file_renders_to(
    names: tuple[str, ...], rendered: str | None, status: str, said: str
) -> None:
    seen = judge_launches({"a": names}, {"a": rendered})["a"]
    assert seen.status == status
    assert said in seen.reason
    assert bool(seen.next_step) == (status == "FAIL" or (rendered is not None and status == "SKIP"))


def test_an_engine_with_a_url_of_its_own_has_no_launch(tmp_path: Path) -> None:
    path, _, _ = write_fleet(tmp_path, [], count=2)
    expanded = open_fleet(path)
    rendered = launches(expanded)
    assert rendered["local/1"] == render_launch(expanded, expanded.engine("local/1")).digest()
    text = path.read_text()
    path.write_text(text.replace("engines:\n", 'engines:\n  overrides: {local/0: {url: "http://127.0.0.1:9"}}\n', 1))
    assert launches(open_fleet(path))["local/0"] is None


# --- attested KV


def test_engines_of_one_kind_go_together() -> None:
    seen = judged(attestation("a"), attestation("b"))
    assert {seen[engine].status for engine in "ab"} == {"ok"}
    assert "compatibility hash c0ffee, KV type auto, blocks of 64 tokens" in seen["a"].reason
    assert seen["silent"].status == "SKIP"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"compatibility_hash": "beef"}, "the compatibility hash is beef, not c0ffee"),
        ({"dtype": "fp8"}, "the KV type is fp8, not auto"),
        ({"block_tokens": 16}, "the block size is 16, not 64"),
        ({"layout": "NHD"}, "the layout is NHD, not LBHNC"),
    ],
)
def test_the_odd_engine_is_named_with_what_differs(changed: dict[str, Any], said: str) -> None:
    seen = judged(attestation("a"), attestation("b", **changed), attestation("c"))
    assert [seen[engine].status for engine in "abc"] == ["ok", "FAIL", "ok"]
    assert said in seen["b"].reason
    assert seen["b"].next_step


def test_what_is_not_known_is_no_difference() -> None:
    unknown = {"compatibility_hash": "a simulated engine has no NIXL agent"}
    one = attestation("a", compatibility_hash=None, layout=None, bytes_per_token=None, unknown=unknown)
    seen = judged(one, attestation("b"), attestation("c"))
    assert {seen[engine].status for engine in "abc"} == {"ok"}
    assert "no compatibility hash: a simulated engine has no NIXL agent" in seen["a"].reason


# --- the sidecar itself


class Told:
    """Stands for an attester: answers what it was given."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    def attest(self) -> dict[str, Any]:
        return self._document


@contextmanager
def sidecar(document: dict[str, Any]) -> Iterator[int]:
    """The port of the sidecar's own server, with another attester behind it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(Told(document)))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def spec(tmp_path: Path) -> EngineSpec:
    path, _, _ = write_fleet(tmp_path, [], count=2)
    expanded: Expanded = open_fleet(path)
    return replace(expanded.engine("local/0"), attest_port=free_run(1))


def asked(spec: EngineSpec, document: dict[str, Any] | None) -> Attested | Verdict:
    """What is read of a sidecar that answers this; None: there is none."""
    if document is None:
        return asyncio.run(ask_sidecar(spec, DIGEST))
    with sidecar(document) as port:
        return asyncio.run(ask_sidecar(replace(spec, attest_port=port), DIGEST))


def test_an_engine_without_a_sidecar_is_skipped_with_the_way_to_have_one(spec: EngineSpec) -> None:
    seen = asked(spec, None)
    assert isinstance(seen, Verdict)
    assert (seen.status, f"port {spec.attest_port}" in seen.reason) == ("SKIP", True)
    assert "narwhal engine attest" in seen.next_step


def test_an_attestation_is_read_as_the_sidecar_writes_it(spec: EngineSpec) -> None:
    seen = asked(spec, attestation("local/0"))
    assert isinstance(seen, Attested)
    assert (seen.compatibility_hash, seen.cache.block_tokens) == ("c0ffee", 64)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (attestation("local/1"), "attests local/1"),
        (attestation("local/0", launch_digest="sha256:" + "cd" * 32), "another launch record"),
        (attestation("local/0", version=None), "status 503"),
        ({"version": "1"}, "serves no attestation"),
    ],
)
def test_a_sidecar_that_does_not_do_is_a_warning(spec: EngineSpec, document: dict[str, Any], said: str) -> None:
    seen = asked(spec, document)
    assert isinstance(seen, Verdict)
    assert seen.status == "WARN"
    assert said in seen.reason
    assert json.dumps(document) not in seen.reason
