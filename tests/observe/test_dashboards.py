"""The dashboards as JSON: fresh, and laid out without gaps or overlaps."""

import json
from itertools import pairwise
from typing import Any

import pytest

from narwhal.observe.dashboards import committed, main, render
from narwhal.observe.panels import PAGES, Page


def board(page: Page) -> Any:
    return json.loads(committed(page).read_text())


def test_what_is_committed_is_what_is_generated() -> None:
    assert main(["--check"]) == 0, "run `python -m narwhal.observe.dashboards`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.uid)
def test_a_dashboard_is_one_and_its_panels_lie_beside_each_other(page: Page) -> None:
    made = board(page)
    assert made == json.loads(render(page))
    assert (made["uid"], made["title"]) == (page.uid, page.title)
    assert [panel["title"] for panel in made["panels"] if panel["type"] == "row"] == [row.title for row in page.rows]
    cells: set[tuple[int, int]] = set()
    for panel in made["panels"]:
        at = panel["gridPos"]
        area = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & area, panel["title"]
        assert max(x for x, _ in area) < 24
        cells |= area
    rows = [panel["gridPos"]["y"] for panel in made["panels"]]
    assert all(before <= after for before, after in pairwise(rows))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.uid)
def test_each_panel_asks_the_chosen_prometheus_about_the_chosen_fleet(page: Page) -> None:
    made = board(page)
    names = [variable["name"] for variable in made["templating"]["list"]]
    assert names == ["datasource", "fleet", *(["engine"] if page.engine else [])]
    panels = [panel for panel in made["panels"] if panel["type"] != "row"]
    assert [p["title"] for p in panels] == [panel.title for row in page.rows for panel in row.panels]
    for panel in panels:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["targets"]
        for target in panel["targets"]:
            assert 'fleet="$fleet"' in target["expr"]
