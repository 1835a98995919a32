"""Pictures: what is drawn, that it is drawn the same again, and what is said without matplotlib."""

import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib import colors, pyplot

from narwhal.report import ReportError, check_plots, draw_plots, make_report, read_runs
from narwhal.report.plots import attainment, course, distributions, request, style
from narwhal.report.plots.course import reasons, splits
from narwhal.report.rows import Move, moves, samples
from narwhal.report.taken import Run
from tests.report.evidence import fleet_seen, mixed_point, outcomes, point_named, write_point

RESULTS = Path(__file__).with_name("results")


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    """Two runs of three rates, one held; one more point does not count."""
    for name, slower, held in (("moving", 1.0, False), ("held", 1.3, True)):
        for rate in (4, 8, 12):
            fleet = fleet_seen(held=held, moves=0 if held else 1)
            point = point_named(f"chat-{rate}", float(rate))
            write_point(tmp_path / name, outcomes(60, slower=slower * rate / 6, lost=0.1), point=point, fleet=fleet)
    write_point(tmp_path / "moving", outcomes(60, slower=9.0), point=point_named("chat-16", 16.0), wrong="late")
    return read_runs([tmp_path / "moving", tmp_path / "held"])


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Figures by name instead of files."""
    kept: dict[str, Any] = {}

    def keep(drawn: Any, folder: Path, name: str) -> list[Path]:
        kept[name] = drawn
        return [folder / name]

    for module in (attainment, course, distributions, request):
        monkeypatch.setattr(module, "save", keep)
    yield kept
    pyplot.close("all")


def labels(figure: Any) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_attainment_over_rate_has_a_curve_for_each_policy_and_no_point_that_does_not_count(
    runs: list[Run], seen: dict[str, Any], tmp_path: Path
) -> None:
    attainment.draw_attainment(runs, tmp_path)
    (axis,) = [axis for axis in seen["attainment"].axes if axis.get_visible()]
    curves = {line.get_label(): list(line.get_xdata()) for line in axis.lines}
    assert curves["reactive"] == curves["held 2p2d"] == [1.0, 1.0, 1.0]  # sixty requests in a minute were sent
    assert axis.get_xlabel() == "offered rate (requests/s)"
    assert axis.get_ylabel() == "requests within targets (%)"
    assert {"reactive", "held 2p2d"} <= set(labels(seen["attainment"]))


def test_measured_and_simulated_points_of_one_mix_share_a_panel(seen: dict[str, Any], tmp_path: Path) -> None:
    write_point(tmp_path / "run", outcomes(60), point=mixed_point("turning", "turning:code,reas:30", 4.0))
    write_point(tmp_path / "run", outcomes(60), point=point_named("other", 3.0))
    attainment.draw_attainment(read_runs([tmp_path / "run", RESULTS / "simulate.json"]), tmp_path)
    panels = {axis.get_title(): axis for axis in seen["attainment"].axes if axis.get_visible()}
    assert len(panels) == 2
    drawn = {line.get_label() for line in panels["turning:code,reas:30"].lines}
    assert {"reactive", "reactive, simulated", "static:2p2d, simulated"} <= drawn


def test_distributions_end_at_the_share_that_has_a_first_token(
    runs: list[Run], seen: dict[str, Any], tmp_path: Path
) -> None:
    distributions.draw_distributions(runs, tmp_path)
    ttft, tpot = seen["distributions"].axes
    first = ttft.lines[0]
    one = runs[0].counting[0]
    with_token = [request.ttft_s for request in one.requests if request.ttft_s is not None]
    assert first.get_ydata()[-1] == pytest.approx(100 * len(with_token) / len(one.requests))
    assert first.get_xdata()[-1] == pytest.approx(1e3 * max(with_token))
    assert (ttft.get_xlabel(), tpot.get_xlabel()) == ("TTFT (ms, logarithmic)", "TPOT (ms, logarithmic)")
    assert "chat-4 (moving)" in labels(seen["distributions"])
    by_run = {line.get_linestyle() for line in ttft.lines if line.get_label().startswith("chat-4")}
    assert len(by_run) == 2


def test_more_points_than_colours_get_figures_of_their_own(seen: dict[str, Any], tmp_path: Path) -> None:
    for number in range(9):
        write_point(tmp_path / "run", outcomes(10), name=f"p-{number}")
    distributions.draw_distributions(read_runs([tmp_path / "run"]), tmp_path)
    assert list(seen) == ["distributions-1", "distributions-2"]


def test_the_course_shows_every_move_with_its_reason(runs: list[Run], seen: dict[str, Any], tmp_path: Path) -> None:
    course.draw_courses(runs[:1], tmp_path)
    assert set(seen) == {"course-chat-4", "course-chat-8", "course-chat-12"}
    figure = seen["course-chat-4"]
    assert figure.get_supxlabel() == "1  10.0 s  h/2 to prefill: prefill is late"
    split = figure.axes[0]
    assert [text.get_text() for text in split.texts] == ["1"]
    assert split.get_ylabel() == "engines"
    assert figure.axes[-1].get_xlabel() == "time since the load began (s)"


def test_a_split_changes_with_the_move_and_not_with_the_sample_after(runs: list[Run]) -> None:
    one = runs[0].counting[0]
    found = splits(samples(one), [Move(9.4, "h/2", "prefill", "why")])
    assert [part for part in found if 9 <= part[0] <= 10] == [(9.0, 2, 2), (9.4, 3, 1), (10.0, 3, 1)]
    seen_before = splits(samples(one), [Move(10.1, "h/2", "prefill", "why")])
    assert {part[1:] for part in seen_before if part[0] >= 10} == {(3, 1)}
    (move,) = moves(one)
    assert (move.engine, move.target, move.reason) == ("h/2", "prefill", "prefill is late")
    assert move.t_s == pytest.approx(10.001)


def test_long_reasons_are_wrapped() -> None:
    assert len(reasons([Move(1.0, "h/1", "decode", "because " * 30)])) > 2


def test_a_request_is_drawn_in_its_parts(runs: list[Run], seen: dict[str, Any], tmp_path: Path) -> None:
    (story,) = make_report(runs[:1], requests=["bench-5"]).requests[:1]
    request.draw_requests([story], tmp_path)
    (figure,) = seen.values()
    (axis,) = figure.axes
    assert [text.get_text().split("\n")[0] for text in axis.get_yticklabels()] == [
        "prefill leg",
        "handoff: seat,",
        "decode",
    ]
    assert axis.get_xlabel() == "time since its client sent it (s)"
    assert any(label.startswith("first token at its client") for label in labels(figure))


def test_files_are_the_same_when_drawn_again(runs: list[Run], tmp_path: Path) -> None:
    told = make_report(runs, requests=["slowest"]).requests[:1]
    few = [Run(runs[0].name, runs[0].path, [runs[0].taken[0]])]
    first, again = (draw_plots(few, told, tmp_path / name) for name in ("a", "b"))
    assert [path.name for path in first] == [path.name for path in again]
    assert {path.suffix for path in first} == {".png", ".svg"}
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
        if one.suffix == ".svg":
            assert ElementTree.parse(one).getroot().tag.endswith("svg")
            assert b"<dc:date>" not in one.read_bytes()
        else:
            width, height = struct.unpack(">II", one.read_bytes()[16:24])
            assert 1000 < width < 1500
            assert height > 300
    assert pyplot.get_fignums() == []


def test_colours_are_okabe_and_ito_s_and_differ_in_grey_or_by_marker() -> None:
    looks = [style.look(place) for place in range(16)]
    assert len({(look["color"], look["marker"], look["linestyle"]) for look in looks}) == 16
    assert len({look["marker"] for look in looks[:8]}) == 8
    assert [colors.to_hex(color).upper() for color in style.COLORS] == list(style.COLORS)
    assert set(style.COLORS) == {
        "#000000",
        "#E69F00",
        "#56B4E9",
        "#009E73",
        "#F0E442",
        "#0072B2",
        "#D55E00",
        "#CC79A7",
    }


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ReportError, match="matplotlib is not installed") as caught:
        check_plots()
    assert caught.value.hint == "pip install 'narwhal-inference[plots]'"


def test_a_folder_that_cannot_be_written_is_named(runs: list[Run], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="cannot write plots"):
        attainment.draw_attainment(runs, tmp_path / "file")


def test_matplotlib_is_not_imported_with_the_room() -> None:
    code = "import sys, narwhal.report, narwhal.report.plots; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
