"""Which change makes which gate stale, and what is said of it."""

from pathlib import Path

import pytest

from narwhal.deploy.content import Wanted
from narwhal.deploy.evidence import GateEvidence
from narwhal.deploy.gates import GATES, ROUTER_SECTIONS
from narwhal.deploy.inputs import inputs_of, of_gate, spoken
from narwhal.deploy.standing import Standing, standings
from narwhal.fleet import check_text
from narwhal.fleet.model import Fleet
from tests.deploy.conftest import FLEET

ALL = "ABCDEFG"


def wanted(text: str = FLEET, addresses: dict[str, str] | None = None) -> Wanted:
    checked = check_text(text)
    assert checked.fleet is not None, checked.findings
    return Wanted(checked.fleet, text, addresses or {})


def passed(letter: str, inputs: dict[str, str], at: str = "2026-01-01T00:00:00.000Z", **more: object) -> GateEvidence:
    gate = next(gate for gate in GATES if gate.letter == letter)
    values = {
        "kind": "GateEvidence", "gate": gate.name, "fleet": "lab", "verdict": "passed", "started_at": at,
        "ended_at": at,
        "operator": "o@m", "narwhal": "0", "limited_to": None, "inputs": of_gate(gate, inputs), "changed": [],
        "facts": {}, "carried": {}, "failure": None, "exit_code": 0,
    }  # fmt: skip
    return GateEvidence.model_validate(values | more)


def after(change: str, to: str, text: str = FLEET) -> dict[str, Standing]:
    """How the gates stand when everything passed and then one piece of the fleet file changed."""
    assert text.count(change) == 1, change
    evidence = {letter: [passed(letter, inputs_of(wanted(text)))] for letter in ALL}
    return {one.gate.letter: one for one in standings(inputs_of(wanted(text.replace(change, to))), evidence)}


DIGEST = "sha256:" + "a" * 64
TABLE = [
    ("path: /models/m", f"path: /models/m, digest: '{DIGEST}'", ALL, "model"),
    ("path: /models/m", "path: /models/n", ALL, "model"),
    ("max_num_seqs: 64", "max_num_seqs: 32", "BCDEFG", "launch of a/0 and 3 more"),
    ("max_num_seqs: 64", "args: {speed: 2}", "BCDEFG", "launch of a/0 and 3 more"),
    ("max_num_seqs: 64", "overrides: {a/1: {args: {speed: 2}}}", "BCDEFG", "launch of a/1"),
    ("kind: simulated", "kind: simulated, speed: 2", ALL, "runtime"),
    ("{name: lab}", "{name: lab, revision: 'sha256:1'}", "BCEG", "revision"),
    ("{name: lab}", "{name: lab, python: '3.12'}", "AB", "python"),
    ("{name: lab}", "{name: lab, labels: {x: y}}", "G", "labels"),
    ("primary: edge", "primary: edge, port: 9000", "G", "routers"),
    ("primary: edge", "primary: a", "G", "routers"),
    ("tpot_s: 0.05", "tpot_s: 0.06", "FG", "slo"),
    ("prefill: 2, decode: 2", "prefill: 1, decode: 3", "G", "split"),
    ("max_num_seqs: 64", "max_num_seqs: 64\nserving: {margin: 0.2}", "G", "serving"),
    ("max_num_seqs: 64", "max_num_seqs: 64\nprofiles: {prior: 8b-h200}", "FG", "profiles"),
    ("max_num_seqs: 64", "max_num_seqs: 64\nlease: {backend: file, path: /x}", "AG", "lease"),
]


@pytest.mark.parametrize(("change", "to", "stale", "because"), TABLE)
def test_a_change_makes_exactly_these_gates_stale(change: str, to: str, stale: str, because: str) -> None:
    found = after(change, to)
    assert "".join(letter for letter in ALL if not found[letter].fresh) == stale
    assert {found[letter].state for letter in stale} == {"stale"}
    assert because in found[stale[0]].reason


def test_nothing_changed_and_everything_is_passed_over() -> None:
    assert all(one.fresh for one in after("split:", "# a comment\nsplit:").values())


def test_every_section_of_the_fleet_file_is_some_gates_input() -> None:
    kinds = {name.partition(":")[0] for name in inputs_of(wanted())} - {"playbook"}
    assert kinds == {kind for gate in GATES for kind in gate.inputs}
    told = {"api_version", "kind", "metadata", "hosts", "engines", *ROUTER_SECTIONS, *kinds}
    assert set(Fleet.model_fields) <= told


def test_what_gate_a_found_does_not_make_gate_a_stale() -> None:
    evidence = {letter: [passed(letter, inputs_of(wanted()))] for letter in ALL}
    found = standings(inputs_of(wanted(addresses={"a": "10.1.0.1"})), evidence)
    assert "".join(one.gate.letter for one in found if not one.fresh) == "BCDEFG"


def test_only_the_hosts_that_differ_have_to_pass_again_where_a_host_can() -> None:
    found = after("max_num_seqs: 64", "max_num_seqs: 64\n  overrides: {a/1: {args: {speed: 2}}}")
    assert {letter: found[letter].hosts for letter in "BCD"} == {"B": ("a",), "C": ("a",), "D": None}


def test_a_new_host_is_named_and_has_to_pass_alone_where_it_can() -> None:
    new = "  - {name: c, ssh: {address: 10.0.0.3, user: ops}, fabric: {address: 10.1.0.3}, engines: 0}\nengines:\n"
    found = after("engines:\n", new)
    assert found["B"].hosts == ("c",)
    assert "host c new" in found["A"].reason
    assert found["A"].hosts is None


def test_a_gate_that_changed_a_host_makes_those_after_it_stale() -> None:
    inputs = inputs_of(wanted())
    evidence = {letter: [passed(letter, inputs)] for letter in ALL}
    evidence["C"].insert(0, passed("C", inputs, at="2026-01-02T00:00:00.000Z", changed=["b"]))
    found = {one.gate.letter: one for one in standings(inputs, evidence)}
    assert "".join(letter for letter in ALL if not found[letter].fresh) == "EF"
    assert found["E"].reason == "gate C changed b at 2026-01-02T00:00:00.000Z"


def test_where_a_host_can_pass_alone_only_those_that_were_changed_have_to_again() -> None:
    inputs = inputs_of(wanted())
    evidence = {letter: [passed(letter, inputs)] for letter in ALL}
    evidence["rollback"] = [passed("B", inputs, at="2026-01-02T00:00:00.000Z", changed=["b"])]
    found = {one.gate.letter: one for one in standings(inputs, evidence)}
    assert {letter: found[letter].hosts for letter in "BCG"} == {"B": ("b",), "C": ("b",), "G": None}


def test_a_host_that_left_concerns_only_gates_that_are_about_all_hosts() -> None:
    with_c = FLEET.replace(
        "engines:\n",
        "  - {name: c, ssh: {address: 10.0.0.3, user: ops}, fabric: {address: 10.1.0.3}, engines: 0}\nengines:\n",
        1,
    )
    evidence = {letter: [passed(letter, inputs_of(wanted(with_c)))] for letter in ALL}
    evidence["purge"] = [passed("B", {}, at="2026-01-02T00:00:00.000Z", changed=["c"])]
    found = {one.gate.letter: one for one in standings(inputs_of(wanted()), evidence)}
    assert "".join(letter for letter in ALL if not found[letter].fresh) == "ADEFG"
    assert "host c gone" in found["A"].reason


def test_the_newest_evidence_counts() -> None:
    inputs = inputs_of(wanted())
    failure = {"host": "a", "task": "t", "message": "the disk is full", "next_step": "free it"}
    failed = passed("B", inputs, verdict="failed", failure=failure)
    found = {one.gate.letter: one for one in standings(inputs, {"B": [failed, passed("B", inputs)]})}
    assert (found["B"].state, found["A"].state) == ("failed", "never")
    assert "a: the disk is full" in found["B"].reason


def test_inputs_in_words() -> None:
    names = ["model", "host:a", "host:b", "launch:a/0", "playbook:b-install"]
    assert spoken(names) == "model, host a and 1 more, launch of a/0, its playbook or roles"


def test_a_gates_playbook_counts_with_all_roles_it_comes_to(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "gate-a-discover.yml": b"- hosts: fleet\n  roles:\n    - role: discover\n",
        "gate-b-install.yml": b"- hosts: fleet\n  roles: [{role: install}]\n",
        "roles/discover/tasks/main.yml": b"- ansible.builtin.include_role:\n    name: evidence\n",
        "roles/evidence/tasks/main.yml": b"- one\n",
        "roles/install/tasks/main.yml": b"- two\n",
    }
    monkeypatch.setattr("narwhal.deploy.inputs.static_files", lambda: files)
    before = inputs_of(wanted())
    files["roles/evidence/tasks/main.yml"] = b"- three\n"
    now = inputs_of(wanted())
    assert [name for name in now if now[name] != before[name]] == ["playbook:a-discover"]


def test_the_evidence_folder_is_nobody_elses(tmp_path: Path) -> None:
    from narwhal.deploy.evidence import folder_of, read_evidence, write_evidence

    path = write_evidence(folder_of(tmp_path, "a-discover", "20260101T000000.000Z"), passed("A", {}))
    assert path.stat().st_mode & 0o777 == 0o600
    assert {place.stat().st_mode & 0o777 for place in list(path.parents)[:3]} == {0o700}
    path.parent.parent.joinpath("20260102T000000.000Z").mkdir()
    path.parent.parent.joinpath("20260102T000000.000Z", "GateEvidence.json").write_text("{")
    assert [one.gate for one in read_evidence(tmp_path, "a-discover")] == ["a-discover"]
