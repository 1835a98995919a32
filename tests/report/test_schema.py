"""The committed schema of reports is the models', says what every key is, and a report keeps to it."""

from pathlib import Path

from jsonschema import Draft202012Validator

from narwhal.documents import data_path, problems, read_schema
from narwhal.report import make_report, read_runs
from narwhal.report.schemas import main, render
from tests.report.evidence import outcomes, write_point


def test_the_committed_schema_is_the_models() -> None:
    assert data_path("schemas", "report", "v1.json").read_text() == render("report"), "run `make schemas`"
    assert main(["--check"]) == 0


def test_it_documents_every_key() -> None:
    schema = read_schema("report")
    Draft202012Validator.check_schema(schema)
    parts = {"report": schema} | schema["$defs"]
    keys = {f"{part}.{key}": field for part, node in parts.items() for key, field in node.get("properties", {}).items()}
    assert [key for key, field in keys.items() if not field.get("description")] == []


def test_a_report_keeps_to_it(tmp_path: Path) -> None:
    write_point(tmp_path, outcomes(10))
    write_point(tmp_path, outcomes(10), at="2026-11-30T11:00:00.000Z", wrong="late")
    report = make_report(read_runs([tmp_path]))
    assert problems(report.model_dump(mode="json", by_alias=True), "report") == []
