"""What a changed fleet file means for a router that runs, as data."""

import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from narwhal.fleet import Expanded, check_text, expand
from narwhal.fleet.model import Fleet
from narwhal.router.reload import EFFECTS, HIDDEN, WHOLE, Effect, InForce, compare

FLEET = """\
apiVersion: narwhal/v1
kind: Fleet
metadata: {name: lab}
model: {name: m, path: /models/m}
slo: {ttft_s: 2.0, tpot_s: 0.05}
hosts:
  - {name: gpu-1, engines: 2, ssh: {address: 10.0.0.1, user: ops}}
  - {name: gpu-2, engines: 2, ssh: {address: 10.0.0.2, user: ops}}
engines:
  runtime: {kind: simulated, speed: 2}
  args: {api-thing: hush-1}
  env: {SOME_VALUE: hush-2}
  overrides:
    gpu-1/0: {url: "http://10.0.0.1:8100"}
split: {prefill: 2, decode: 2}
routers:
  primary: gpu-1
  admin: {port: 8001, tokens: [{name: ops, scope: operate, token: {env: HUSH_3}}]}
controller: {policy: reactive}
serving: {admission: predictive}
"""


def expanded(*edits: tuple[str, str]) -> Expanded:
    text = FLEET
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    checked = check_text(text)
    assert checked.fleet is not None, checked.findings
    return expand(checked.fleet)


def schema_fields(part: Any, name: str = "") -> Iterator[str]:
    """Every leaf of the schema, in the words of `EFFECTS`."""
    origin, arguments = typing.get_origin(part), typing.get_args(part)
    if isinstance(part, type) and issubclass(part, BaseModel) and name not in WHOLE:
        for key, info in part.model_fields.items():
            yield from schema_fields(info.annotation, f"{name}.{info.alias or key}" if name else info.alias or key)
    elif origin is typing.Annotated:
        yield from schema_fields(arguments[0], name)
    elif origin is dict:
        yield from schema_fields(arguments[1], f"{name}{{}}")
    elif origin is list:
        named = isinstance(arguments[0], type) and "name" in getattr(arguments[0], "model_fields", ())
        yield from schema_fields(arguments[0], f"{name}[]") if named else [name]
    elif origin in (typing.Union, types.UnionType):
        for argument in arguments:
            if argument is not type(None):
                yield from schema_fields(argument, name)
    else:
        yield name


def test_every_field_of_the_schema_has_an_effect() -> None:
    fields = set(schema_fields(Fleet))
    assert len(fields) > 100
    assert fields - set(EFFECTS) == set(), "say in router/reload.py what a reload does with them"
    assert set(EFFECTS) - fields == set(), "no such fields any more"
    assert fields >= HIDDEN


@pytest.mark.parametrize("effect", Effect)
def test_the_page_on_reloads_lists_them(effect: Effect) -> None:
    page = (Path(__file__).parents[2] / "docs/reference/reload.md").read_text()
    listed = re.search(rf"<!-- fields: {effect.name} -->(.*?)<!-- end -->", page, re.DOTALL)
    assert listed is not None
    assert set(re.findall(r"`([^`]+)`", listed[1])) == {name for name, is_ in EFFECTS.items() if is_ is effect}


def test_a_field_without_an_effect_would_be_found() -> None:
    class Sub(BaseModel):
        new_field: int = 0

    class More(Fleet):
        added: Sub | None = None

    assert set(schema_fields(More)) - set(EFFECTS) == {"added.new_field"}


def test_the_same_file_changes_nothing() -> None:
    plan = compare(InForce.start(expanded()), expanded())
    assert (plan.applied, plan.restart, plan.no_effect, plan.joins, plan.leaves) == ([], [], [], [], [])


@pytest.mark.parametrize(
    ("old", "new", "path", "values"),
    [
        ("ttft_s: 2.0", "ttft_s: 3.0", "slo.ttft_s", (2.0, 3.0)),
        ("policy: reactive", "policy: projection", "controller.policy", ("reactive", "projection")),
        ("predictive}", "predictive, queue: {max_requests: 5}}", "serving.queue.max_requests", (1024, 5)),
        ("predictive}", "predictive, media_hosts: [a.example]}", "serving.media_hosts", ([], ["a.example"])),
        (
            "tpot_s: 0.05",
            "tpot_s: 0.05, ttft_by_prompt: [{up_to_tokens: 100, ttft_s: 1}]",
            "slo.ttft_by_prompt",
            ([], [{"up_to_tokens": 100, "ttft_s": 1.0}]),
        ),
    ],
)
def test_what_is_in_force_at_once(old: str, new: str, path: str, values: tuple[Any, Any]) -> None:
    now, wanted = InForce.start(expanded()), expanded((old, new))
    plan = compare(now, wanted)
    assert [(change.path, (change.old, change.new), change.needs) for change in plan.applied] == [(path, values, "")]
    assert plan.restart == plan.no_effect == []
    after = now.after(wanted)
    assert compare(after, wanted).applied == []
    assert [change.new for change in compare(after, expanded()).applied] == [values[0]]


@pytest.mark.parametrize(
    ("old", "new", "path", "needs"),
    [
        ("port: 8001", "port: 9001", "routers.admin.port", "router"),
        ("primary: gpu-1", "primary: gpu-1\n  port: 9000", "routers.port", "router"),
        ("{name: lab}", "{name: other}", "metadata.name", "router"),
        ("{name: m,", "{name: n,", "model.name", "router"),
        ("primary: gpu-1", "primary: gpu-1\n  tls: {cert: /c, key: /k}", "routers.tls.cert", "router"),
        ("speed: 2", "speed: 4", "engines.runtime.speed", "engines and router"),
    ],
)
def test_what_needs_the_router_is_said_until_it_is_restarted(old: str, new: str, path: str, needs: str) -> None:
    now, wanted = InForce.start(expanded()), expanded((old, new))
    for _ in range(2):
        plan = compare(now, wanted)
        assert path in [change.path for change in plan.restart]
        assert {change.needs for change in plan.restart} == {needs}
        assert plan.applied == []
        now = now.after(wanted)
    assert compare(now, expanded()).restart == []
    assert now.fleet.engines == expanded().fleet.engines


def test_a_certificate_is_live_and_tls_itself_is_not() -> None:
    tls = ("primary: gpu-1", "primary: gpu-1\n  tls: {cert: /c, key: /k}")
    other = ("primary: gpu-1", "primary: gpu-1\n  tls: {cert: /other, key: /k}")
    on = InForce.start(expanded(tls))
    plan = compare(on, expanded(other))
    assert ([change.path for change in plan.applied], plan.restart) == (["routers.tls.cert"], [])
    assert compare(on.after(expanded(other)), expanded(other)).applied == []
    off = compare(on, expanded())
    assert ([change.path for change in off.restart], off.applied) == (["routers.tls.cert", "routers.tls.key"], [])
    assert len(compare(on.after(expanded()), expanded()).restart) == 2


def test_what_needs_the_engines_alone_is_said_once() -> None:
    now, wanted = InForce.start(expanded()), expanded(("runtime:", "max_model_len: 4096\n  runtime:"))
    assert [(c.path, c.needs) for c in compare(now, wanted).restart] == [("engines.max_model_len", "engines")]
    assert compare(now.after(wanted), wanted).restart == []


def test_what_nothing_reads_is_said_to_mean_nothing() -> None:
    wanted = expanded(("{name: lab}", "{name: lab, labels: {site: north}}"))
    plan = compare(InForce.start(expanded()), wanted)
    assert [(change.path, change.note) for change in plan.no_effect] == [("metadata.labels.site", Effect.UNREAD.value)]
    assert plan.applied == plan.restart == []


def test_secrets_are_told_apart_and_not_shown() -> None:
    wanted = expanded(("hush-1", "hush-4"), ("hush-2", "hush-5"), ("HUSH_3", "HUSH_6"))
    plan = compare(InForce.start(expanded()), wanted)
    assert {(change.path, change.old, change.new) for change in plan.restart + plan.applied} == {
        ("engines.args.api-thing", "***", "***"),
        ("engines.env.SOME_VALUE", "***", "***"),
        ("routers.admin.tokens.ops.token.env", "***", "***"),
    }
    assert "hush" not in repr(plan).lower()


def test_an_engine_joins_and_the_roles_of_the_others_stay() -> None:
    wanted = expanded(("gpu-2, engines: 2", "gpu-2, engines: 3"), ("prefill: 2,", "prefill: 3,"))
    plan = compare(InForce.start(expanded()), wanted)
    assert [engine.id for engine in plan.joins] == ["gpu-2/2"]
    assert [change.path for change in plan.applied] == ["engine gpu-2/2"]
    assert [change.path for change in plan.no_effect] == ["split.prefill"]
    assert plan.leaves == plan.restart == []


def test_an_engine_leaves() -> None:
    plan = compare(
        InForce.start(expanded()), expanded(("gpu-2, engines: 2", "gpu-2, engines: 1"), ("decode: 2", "decode: 1"))
    )
    assert (plan.leaves, plan.joins) == (["gpu-2/1"], [])
    assert [(change.path, change.new) for change in plan.applied] == [("engine gpu-2/1", None)]


def test_another_url_is_an_engine_that_leaves_and_one_that_joins() -> None:
    plan = compare(InForce.start(expanded()), expanded(("10.0.0.1:8100", "10.0.0.1:8900")))
    assert (plan.leaves, [engine.url for engine in plan.joins]) == (["gpu-1/0"], ["http://10.0.0.1:8900"])
    assert [change.path for change in plan.applied] == ["engine gpu-1/0 url"]


def test_a_pin_is_in_force_at_once() -> None:
    plan = compare(InForce.start(expanded()), expanded(('8100"}', '8100", pin: prefill}')))
    assert [(change.path, change.old, change.new) for change in plan.applied] == [
        ("engine gpu-1/0 pin", None, "prefill")
    ]
    assert plan.leaves == plan.joins == []


def test_the_digest_is_of_what_is_said_not_of_how() -> None:
    plain = expanded().fleet.digest()
    assert plain == expanded(("kind: Fleet\n", "kind: Fleet\n# a remark\n"), ("port: 8001, ", "")).fleet.digest()
    assert plain != expanded(("ttft_s: 2.0", "ttft_s: 2.5")).fleet.digest()
