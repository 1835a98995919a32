"""Reading: places of values, findings of the YAML itself, and files that cannot be judged."""

import io
import sys
from pathlib import Path

import pytest

from narwhal.fleet import FleetError, SourceError, check_file, check_text, fleet_files, open_fleet, read_source
from narwhal.fleet.source import Mark, parse_source
from tests.fleet.fleets import BASE


def test_every_key_and_value_has_its_place() -> None:
    source = parse_source("a: 1\nb:\n  - {c: x, d: [1, 2]}\n", "f")
    assert source.data == {"a": 1, "b": [{"c": "x", "d": [1, 2]}]}
    assert source.place(("b", 0, "d"), key=True) == Mark(3, 12)
    assert source.place(("b", 0, "d", 1)) == Mark(3, 19)
    assert source.place(("b", 0, "missing")) == Mark(3, 5)


def test_yaml_1_2_words_are_text() -> None:
    assert parse_source("[yes, no, on, 08, 1e3, 0o10, ~, 2024-01-01]", "f").data == [
        "yes", "no", "on", 8, 1000.0, 8, None, "2024-01-01",
    ]  # fmt: skip


def test_anchors_and_merges_are_followed() -> None:
    source = parse_source("x: &x {a: 1, b: 2}\ny:\n  <<: *x\n  b: 3\n", "f")
    assert source.data["y"] == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a: 1\n b: 2\n", 2, 3),
        ("a: [1\nb: 2", 2, 2),
        ("a: \t- b\n", 1, 4),
        ("a: *nobody\n", 1, 4),
        ("a: &a [*a]\n", 1, 1),
        ("a: 'x\n", 2, 1),
        ("\x07", 1, 1),
    ],
)
def test_bad_yaml_is_a_finding_with_its_place(text: str, line: int, column: int) -> None:
    found = check_text(text).findings
    assert [(f.id, f.line, f.column) for f in found] == [("NW001", line, column)]


def test_aliases_cannot_blow_a_document_up() -> None:
    rows = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert [f.id for f in check_text("\n".join(rows)).findings] == ["NW001"]


def test_every_duplicate_key_is_found() -> None:
    text = BASE + "slo: {ttft_s: 1}\nsplit: {prefill: 1}\n"
    lines = text.count("\n")
    assert [(f.id, f.line) for f in check_text(text).findings] == [("NW002", lines - 1), ("NW002", lines)]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty-file"),
        (b"# nothing but a comment\n", "empty-file"),
        (b"---\na: 1\n---\nb: 2\n", "many-documents"),
        (b"\xff\xfe\x00binary", "binary-file"),
        (b"a: \x00\n", "binary-file"),
    ],
)
def test_what_is_no_document_is_said_clearly(tmp_path: Path, content: bytes, code: str) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_bytes(content)
    with pytest.raises(SourceError) as error:
        check_file(str(file))
    assert (error.value.code, error.value.file) == (code, str(file))
    assert error.value.hint


def test_missing_files_and_directories_are_said_clearly(tmp_path: Path) -> None:
    for name, code in ((str(tmp_path / "none.yaml"), "missing-file"), (str(tmp_path), "not-a-file")):
        with pytest.raises(SourceError) as error:
            read_source(name)
        assert error.value.code == code


def test_a_file_too_large_to_be_a_fleet_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("# " + "x" * (5 * 1024 * 1024))
    with pytest.raises(SourceError, match="larger"):
        read_source(str(file))


def test_standard_input_is_a_file_called_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BASE.encode())))
    assert check_file("-").findings == ()


def test_a_byte_order_mark_is_no_part_of_the_document(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + BASE.encode())
    assert check_file(str(file)).findings == ()


def test_a_document_that_is_no_mapping_is_a_finding() -> None:
    assert [f.id for f in check_text("- 1\n").findings] == ["NW006"]


def test_directories_give_the_fleet_files_below_them(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "fleet.yaml").write_text(BASE)
    (tmp_path / "a" / "other.yaml").write_text("kind: Other\n")
    (tmp_path / "b.yml").write_text('kind: "Fleet"  # broken, and still a fleet\n')
    assert fleet_files([str(tmp_path)]) == [str(tmp_path / "a" / "fleet.yaml"), str(tmp_path / "b.yml")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no fleet file"):
        fleet_files([str(tmp_path / "empty")])


def test_opening_a_broken_fleet_says_everything(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(BASE.replace("prefill: 3", "prefill: 2").replace("kv_lease_s: 30", "kv_lease_s: 1"))
    with pytest.raises(FleetError) as error:
        open_fleet(file)
    assert [f.id for f in error.value.findings] == ["NW054", "NW030"]
    assert f"{file}:" in str(error.value)
