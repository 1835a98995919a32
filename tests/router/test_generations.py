"""Which life of an engine's process the router knows: by its names, else by its start; read again when in doubt."""

from pathlib import Path
from typing import Any

from narwhal.engine.dialect import VllmDialect
from tests.router.harness import FakeEngine, Router, eventually, routing


def generation(router: Router, engine: int) -> Any:
    return router.state()["engines"][engine]["generation"]


def test_the_generation_is_the_served_name_s_else_the_start_s(tmp_path: Path) -> None:
    engines = [FakeEngine(), FakeEngine()]
    engines[0].names = ["m", "narwhal.gen.life-1", "narwhal.launch.abc"]
    with routing(tmp_path, engines) as router:
        assert (generation(router, 0), generation(router, 1)) == ("life-1", "1.7e9")
        engines[0].names = ["m", "narwhal.gen.life-2"]
        engines[0].started_at = "1.8e9"
        engines[1].started_at = "1.9e9"
        eventually(lambda: generation(router, 0) == "life-2", "the new name")
        eventually(lambda: generation(router, 1) == "1.9e9", "the new start")
        assert b"narwhal." not in router.send("GET", "/v1/models")[2]


def test_names_that_are_none_tell_no_generation() -> None:
    dialect = VllmDialect()
    assert dialect.generation(b'{"data":[{"id":"m"},{"id":"narwhal.gen.x"}]}') == "x"
    assert dialect.generation(b'{"data":[{"id":"m"}]}') == ""
    assert dialect.generation(b"not json") == ""
    assert dialect.generation(b'{"detail":"Not Found"}') == ""
