"""A router in front of the contract's engines: roles swap back and forth under load, and every answer stays right."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.contract.engines import MODEL, Engine, FreshPrompt
from tests.router.harness import Router, eventually, start_router, write_fleet

pytestmark = pytest.mark.e2e
CLIENTS, SWAPS, TOKENS = 4, 4, 12
CONTROLLER = "enabled: false, thresholds: {cooldown_s: 0, dwell_s: 0}"


@pytest.fixture
def router(engine_pair: tuple[Engine, Engine], tmp_path: Path) -> Iterator[Router]:
    path, port, admin_port = write_fleet(
        tmp_path,
        [engine.port for engine in engine_pair],
        controller=CONTROLLER,
        slo="ttft_s: 4.0, tpot_s: 1.0",
        serving="admission: open, deadlines: {prefill_s: 0, first_token_s: 0, gap_s: 0}",
        recovery="probe_interval_s: 0.2, probe_timeout_s: 60, readmit_after: 1",
        engine_more="\n  kv_lease_s: 8",
    )
    path.write_text(path.read_text().replace("model: {name: m,", f"model: {{name: {MODEL},"))
    router = start_router(tmp_path, path, port, admin_port)
    try:
        eventually(router.ready, "the router's readiness")
        yield router
    finally:
        router.stop()


class Load:
    """Clients that ask one prompt after another until they are told to stop."""

    def __init__(self, router: Router, prompts: FreshPrompt) -> None:
        self.answers: list[tuple[list[int], int, Any]] = []
        self._router = router
        self._prompts = prompts
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(CLIENTS)
        self._clients = [self._pool.submit(self._ask) for _ in range(CLIENTS)]

    def _ask(self) -> None:
        while not self._over.is_set():
            with self._lock:
                prompt = self._prompts(200)
            body = {
                "model": MODEL,
                "prompt": prompt,
                "max_tokens": TOKENS,
                "temperature": 0,
                "ignore_eos": True,
                "return_token_ids": True,
            }
            status, _, answer = self._router.send("POST", "/v1/completions", body)
            self.answers.append((prompt, status, json.loads(answer)))

    def stop(self) -> None:
        self._over.set()
        for client in self._clients:
            client.result()
        self._pool.shutdown()


def roles(router: Router) -> tuple[str, ...]:
    return tuple(engine["role"] for engine in router.state()["engines"])


def swap(router: Router) -> bool:
    """Ask for a swap; False while a guard holds it."""
    first, second = (engine["id"] for engine in router.state()["engines"])
    _, _, answer = router.send("POST", "/narwhal/swap", {"a": first, "b": second}, admin=True)
    return bool(json.loads(answer)["decision"]["outcome"] == "moved")


def test_roles_swap_under_load_and_every_answer_is_the_engines_own(
    router: Router, engine_pair: tuple[Engine, Engine], fresh_prompt: FreshPrompt
) -> None:
    load = Load(router, fresh_prompt)
    try:
        seen = [roles(router)]
        for _ in range(SWAPS):
            before = len(load.answers)
            eventually(lambda: len(load.answers) >= before + 2 * CLIENTS, "answers with this split")  # noqa: B023
            eventually(lambda: swap(router), "the swap")
            eventually(lambda: roles(router) != seen[-1], "the other roles")
            seen.append(roles(router))
        before = len(load.answers)
        eventually(lambda: len(load.answers) >= before + 2 * CLIENTS, "answers with the last split")
    finally:
        load.stop()
    assert seen == [("prefill", "decode"), ("decode", "prefill")] * (SWAPS // 2) + [("prefill", "decode")]
    assert Counter(status for _, status, _ in load.answers) == {200: len(load.answers)}
    for prompt, _, answer in load.answers:
        assert answer["choices"][0]["token_ids"] == engine_pair[0].tokens(prompt, TOKENS, ignore_eos=True)
    rows = router.rows("request")
    directions = {(row["prefill_engine"], row["decode_engine"]) for row in rows if not row["whole"]}
    assert {("local/0", "local/1"), ("local/1", "local/0")} <= directions
    assert {row["outcome"] for row in rows} == {"served"}
