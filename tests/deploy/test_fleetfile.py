"""Values are set in a fleet file without another byte changing."""

import pytest

from narwhal.deploy.fleetfile import with_host_key, with_revision, with_value
from narwhal.documents import data_path
from narwhal.fleet.source import parse_source
from tests.deploy.goldens import EXAMPLES

REVISION = "sha256:" + "a" * 64
LINE = f'revision: "{REVISION}"'


def changed(before: str, after: str) -> tuple[list[str], list[str]]:
    """Lines that went, and lines that came."""
    old, new = before.splitlines(), after.splitlines()
    return [line for line in old if line not in new], [line for line in new if line not in old]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_revision_is_one_line_of_difference_and_replaced_in_place(name: str) -> None:
    text = data_path("inventories", name, "fleet.yaml").read_text()
    first = with_revision(text, REVISION)
    assert changed(text, first) == ([], [f'  revision: "{REVISION}"'])
    again = with_revision(first, REVISION.replace("a", "b"))
    assert changed(first, again)[1] == [f'  revision: "{REVISION.replace("a", "b")}"']
    assert parse_source(again, "f").data["metadata"]["name"] == name


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("metadata: {name: lab} # c\n", f"metadata: {{name: lab, {LINE}}} # c\n"),
        ("metadata:\n  name: lab   # the lab\nx: y\n", f"metadata:\n  name: lab   # the lab\n  {LINE}\nx: y\n"),
        ("metadata:\n    name: lab", f"metadata:\n    name: lab\n    {LINE}"),
        ("metadata:\n  labels:\n    a: b\n", f"metadata:\n  {LINE}\n  labels:\n    a: b\n"),
        ("metadata: {name: a, revision: 'old', labels: {}}\n", f"metadata: {{name: a, {LINE}, labels: {{}}}}\n"),
    ],
)
def test_where_a_value_goes(before: str, after: str) -> None:
    assert with_revision(before, REVISION) == after


def test_a_key_is_pinned_in_a_flow_mapping() -> None:
    text = "hosts:\n  - {name: a, ssh: {address: 10.0.0.1, user: ops}, gpus: 1} # first\n"
    assert with_host_key(text, 0, "ssh-ed25519 AAAA/+=") == text.replace(
        "user: ops", 'user: ops, host_key: "ssh-ed25519 AAAA/+="'
    )


def test_what_an_anchor_shares_is_not_changed_elsewhere() -> None:
    text = "a: &x {k: one}\nb:\n  <<: *x\n  j: 1\n"
    found = parse_source(with_value(text, ("b", "k"), "two"), "f").data
    assert (found["a"]["k"], found["b"]["k"]) == ("one", "two")
