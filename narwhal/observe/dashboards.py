"""Generating Grafana's dashboards: `python -m narwhal.observe.dashboards [--check]`, with the extra `dev`.

What comes of it is committed under `templates/grafana` and shipped, so nobody else needs the SDK.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.common import GraphTresholdsStyleMode

from narwhal.documents import data_path, write_atomically
from narwhal.observe.panels import PAGES, Page, Panel

_SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_WIDTH, _EACH = 24, {True: 6, False: 12}
"""Columns of a page, and of a number and of lines."""
_HEIGHT = {True: 4, False: 8}


def render(page: Page) -> str:
    """The JSON of a dashboard: the same text for the same page."""
    board = (
        dashboard.Dashboard(page.title)
        .uid(page.uid)
        .tags(["narwhal"])
        .refresh("10s")
        .time("now-1h", "now")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_variable("fleet", "label_values(narwhal_build_info, fleet)"))
    )
    if page.engine:
        query = 'label_values(narwhal_engine_live{fleet="$fleet"}, engine)'
        board = board.with_variable(_variable("engine", query).multi(True).include_all(True).all_value(".*"))
    y = 0
    for row in page.rows:
        board = board.with_row(dashboard.Row(row.title).grid_pos(models.GridPos(h=1, w=_WIDTH, x=0, y=y)))
        y, x = y + 1, 0
        for number, panel in enumerate(row.panels):
            width, height = _EACH[panel.stat], _HEIGHT[panel.stat]
            board = board.with_panel(_panel(panel).grid_pos(models.GridPos(h=height, w=width, x=x, y=y)))
            x += width
            last = number + 1 == len(row.panels)
            if x + (0 if last else _EACH[row.panels[number + 1].stat]) > _WIDTH or last:
                x, y = 0, y + height
    return str(JSONEncoder(sort_keys=True, indent=1).encode(board.build())) + "\n"


def _variable(name: str, query: str) -> dashboard.QueryVariable:
    on_load = models.VariableRefresh.ON_TIME_RANGE_CHANGED
    return dashboard.QueryVariable(name).datasource(_SOURCE).query(query).refresh(on_load)


def _panel(panel: Panel) -> Any:
    built: Any = stat.Panel() if panel.stat else timeseries.Panel().fill_opacity(8).min(0)
    built = built.title(panel.title).datasource(_SOURCE).unit(panel.unit)
    if panel.limit is not None:
        steps = [models.Threshold(value=None, color="green"), models.Threshold(value=panel.limit, color="red")]
        built = built.thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
        built = built.thresholds_style(common.GraphThresholdsStyleConfig().mode(GraphTresholdsStyleMode.LINE))
    for query in panel.queries:
        built = built.with_target(prometheus.Dataquery().expr(query.expr).legend_format(query.legend))
    return built


def main(arguments: Sequence[str]) -> int:
    """Write the dashboards, or with `--check` say which are out of date."""
    folder, stale = data_path("templates", "grafana"), []
    for page in PAGES:
        path = folder / f"{page.uid}.json"
        if path.is_file() and path.read_text() == render(page):
            continue
        stale.append(path.name)
        if "--check" not in arguments:
            write_atomically(path, render(page))
    if stale and "--check" in arguments:
        sys.stderr.write(f"out of date: {', '.join(stale)}; run python -m narwhal.observe.dashboards\n")
        return 1
    return 0


def committed(page: Page) -> Path:
    """Where a dashboard is shipped."""
    return data_path("templates", "grafana", f"{page.uid}.json")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
