"""Findings for machines, the catalogue, and its page in the docs."""

import json
from pathlib import Path

from narwhal.fleet import report
from narwhal.fleet.rules import RULES
from tests.fleet.fleets import broken, findings

FOUND = findings(broken("  tpot_s: 0.05", "  tpot_s: 50%, fast"))


def test_text_names_place_id_expectation_and_fix() -> None:
    lines = report.as_text(FOUND).splitlines()
    assert lines[0].startswith("fleet.yaml:7:11: NW006 ")
    assert lines[1].startswith("    expected: ")
    assert lines[2].startswith("    fix: ")


def test_github_annotations_escape_what_ends_them() -> None:
    line = report.as_github(FOUND)
    assert line.startswith("::error file=fleet.yaml,line=7,col=11,title=NW006 wrong type::")
    assert "50%25, fast" in line
    assert "\n" not in line


def test_sarif_has_the_structure_of_its_standard() -> None:
    log = json.loads(report.as_sarif(FOUND, "1.2.3"))
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert (driver["name"], driver["version"]) == ("narwhal", "1.2.3")
    assert {rule["id"] for rule in driver["rules"]} == set(RULES)
    assert all(rule["shortDescription"]["text"] and rule["help"]["text"] for rule in driver["rules"])
    (result,) = run["results"]
    assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "NW006"
    assert result["level"] == "error"
    assert result["message"]["text"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "fleet.yaml"
    assert place["region"] == {"startLine": 7, "startColumn": 11}


def test_no_finding_is_an_empty_run() -> None:
    assert json.loads(report.as_sarif([], "1"))["runs"][0]["results"] == []
    assert report.as_text([]) == report.as_github([]) == ""


def test_ids_are_well_formed_and_explained() -> None:
    for id_, entry in RULES.items():
        assert id_ == entry.id
        assert len(id_) == 5
        assert id_[2:].isdigit()
        assert entry.title
        assert entry.means.endswith(".")
        assert entry.fix.endswith(".")


def test_the_docs_list_the_rules_as_they_are() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "rules.md"
    assert page.read_text() == report.rules_markdown(), (
        "narwhal validate --rules --format markdown > docs/reference/rules.md"
    )
