"""`--plot`: what is drawn, and that a picture comes out."""

import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib import pyplot

from narwhal.cli.verbs import run_app
from narwhal.simulate import Figures, PlotError, check_plot, draw
from narwhal.simulate.plot import picture
from narwhal.simulate.scenario import Outcome
from narwhal.simulate.score import Score

WINDOWS = ((4, 4), (0, 0), (4, 2), (4, 3))
"""Offered and met."""
SPLITS = [(0.0, 2, 2), (6.5, 3, 1), (11.0, 2, 2)]


def figures(policy: str, windows: tuple[tuple[int, int], ...], splits: list[tuple[float, int, int]]) -> Figures:
    score = Score(10, 0.7, 0, 0, None, None, (), windows)
    return Figures(policy, [Outcome(policy, 1, 5.0, score, len(splits) - 1, splits)])


@pytest.fixture
def results() -> dict[str, Figures]:
    return {
        "reactive": figures("reactive", WINDOWS, SPLITS),
        "static": figures("static", ((4, 1),) * 4, [(0.0, 1, 3)]),
    }


@pytest.fixture
def axes(results: dict[str, Figures]) -> Iterator[list[Any]]:
    figure = picture(results)
    yield figure.axes
    pyplot.close(figure)


def series(axis: Any) -> dict[str, list[tuple[float, float]]]:
    return {line.get_label(): [tuple(point) for point in line.get_xydata()] for line in axis.lines}


def test_attainment_of_each_window_is_drawn_where_something_arrived(axes: list[Any]) -> None:
    assert axes[0].get_ylabel() == "attainment"
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == ["reactive", "static"]
    drawn = series(axes[0])
    assert drawn["reactive"] == [(0.0, 1.0), (10.0, 0.5), (15.0, 0.75)]
    assert [t for t, _ in drawn["static"]] == [0.0, 5.0, 10.0, 15.0]


def test_prefill_engines_are_drawn_in_steps_from_each_move_to_the_end_of_the_run(axes: list[Any]) -> None:
    assert (axes[1].get_ylabel(), axes[1].get_xlabel()) == ("prefill engines", "seconds")
    drawn = series(axes[1])
    assert drawn["reactive"] == [(0.0, 2.0), (6.5, 3.0), (11.0, 2.0), (20.0, 2.0)]
    assert drawn["static"] == [(0.0, 1.0), (20.0, 1.0)]
    assert {line.get_drawstyle() for line in axes[1].lines} == {"steps-post"}


def pixels(data: bytes) -> tuple[int, int, int]:
    """Width, height and number of different bytes in the picture of a PNG."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    body, place = b"", 8
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        if data[place + 4 : place + 8] == b"IDAT":
            body += data[place + 8 : place + 8 + length]
        place += 12 + length
    width, height = struct.unpack(">II", data[16:24])
    return width, height, len(set(zlib.decompress(body)))


def test_a_picture_is_written_in_the_kind_that_its_name_says(results: dict[str, Figures], tmp_path: Path) -> None:
    draw(results, tmp_path / "a.png")
    width, height, colours = pixels((tmp_path / "a.png").read_bytes())
    assert (width, height) == (1000, 600)
    assert colours > 20
    draw(results, tmp_path / "a.svg")
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 10
    assert pyplot.get_fignums() == []


def test_the_verb_names_the_picture_among_its_artifacts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.png"
    base = ["simulate", "--curves", "8b-h100", "--engines", "4", "--seeds", "3", "--seconds", "40", "--rate", "4"]
    assert run_app([*base, "--mix", "steady:conv", "--policy", "static", "--plot", str(path), "--format", "json"]) == 0
    assert f'"{path}"' in capsys.readouterr().out
    assert pixels(path.read_bytes())[:2] == (1000, 600)


def test_a_kind_of_picture_that_is_none_is_named_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(PlotError, match=r"a\.doc: no kind of picture; end its name in one of: .*png.*svg"):
        check_plot(tmp_path / "a.doc")


def test_a_place_that_cannot_be_written_is_named(results: dict[str, Figures], tmp_path: Path) -> None:
    (tmp_path / "a.png").mkdir()
    with pytest.raises(PlotError, match="it is a folder"):
        check_plot(tmp_path / "a.png")
    with pytest.raises(PlotError, match=r"a\.png: cannot write the picture: Is a directory"):
        draw(results, tmp_path / "a.png")


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotError, match=r"pip install 'narwhal-inference\[plots\]'"):
        check_plot(tmp_path / "a.png")
