import io
from dataclasses import replace
from typing import Any

from rich.console import Console

from narwhal.control.curves import Curves
from narwhal.dev.demo import View
from narwhal.dev.picture import line, picture
from narwhal.dev.report import DemoMove, report, summary_lines
from narwhal.dev.template import FleetPlan, fleet_yaml
from narwhal.dev.traffic import DECODE_HEAVY, PREFILL_HEAVY, turning_phases
from narwhal.fleet import Expanded, load_profile, open_fleet
from narwhal.measure import Outcome, Planned, poisson

STATE: dict[str, Any] = {
    "split": {"prefill": 1, "decode": 1},
    "load": {"prefill": 1.4, "decode": None},
    "queue": {"requests": 5, "oldest_s": 1.0},
    "engines": [
        {"id": "local/0", "role": "prefill", "prefills": 2, "residents": 0},
        {"id": "local/1", "role": "decode", "prefills": 0, "residents": 11},
    ],
}
MOVE = DemoMove(31.5, "local/1", "decode", "prefill", "TTFT 1.31 of its target", 7)
VIEW = View(35.0, 90.0, DECODE_HEAVY, STATE, [MOVE], 0.97, 0.55, 12, 40)


def drawn(view: View, width: int = 140, height: int = 25) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    console.print(picture(view))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_picture_shows_split_load_attainment_and_moves_with_reasons() -> None:
    text = drawn(VIEW)
    assert "35 of 90 s · decode-heavy (short prompts, long answers)" in text
    assert "local/0 prefill  2 prompts" in text
    assert "local/1 decode  11 streams" in text
    assert "1.40" in text
    assert "97% here, 55% with the split it started from" in text
    assert "12 in flight, 5 in the queue; 40 in flight there" in text
    assert "31.5 s  local/1 decode → prefill  TTFT 1.31 of its target" in text


def test_a_load_bar_ends_at_its_full_width() -> None:
    bars = [row for row in drawn(VIEW).splitlines() if "load" in row]
    full = drawn(replace(VIEW, state=STATE | {"load": {"prefill": 9.0, "decode": 1.0}})).splitlines()
    assert bars[0].count("█") == 28 - 1  # 1.4 × 20 cells, one of which is the mark at 1.0
    assert [row.count("█") for row in full if "load" in row] == [39, 20]


FOUR = STATE | {
    "engines": [engine | {"id": f"local/{2 * i + j}"} for i in (0, 1) for j, engine in enumerate(STATE["engines"])]
}


def test_a_small_terminal_gets_the_whole_picture_in_fewer_words() -> None:
    view = replace(VIEW, state=FOUR, moves=[replace(MOVE, at_s=float(t)) for t in range(9)])
    rows = drawn(view, 60, 15).splitlines()
    assert len(rows) <= 15
    assert all(len(row) == 60 for row in rows)
    text = "\n".join(rows)
    assert all(f"local/{number}" in text for number in range(4))
    assert "decode-heavy ─" in text
    assert "97% here, 55% without moves" in text
    assert "12 in flight, 5 queued; there 40" in text
    assert "  1.40 " in text
    assert "8.0 s  local/1 decode → prefill" in text
    assert rows[0].startswith("╭")
    assert rows[-1].startswith("╰")


def test_a_low_terminal_loses_old_moves_then_requests_then_moves_then_engines() -> None:
    view = replace(VIEW, state=FOUR, moves=[replace(MOVE, at_s=float(t)) for t in range(9)])

    def shown(height: int) -> list[bool]:
        text = drawn(view, 60, height)
        assert len(text.splitlines()) == height
        return [part in text for part in ("7.0 s", "requests", "8.0 s", "local/0", "in SLO")]

    assert shown(10) == [True, True, True, True, True]
    assert shown(9) == [False, True, True, True, True]
    assert shown(8) == [False, False, True, True, True]
    assert shown(7) == [False, False, False, True, True]
    assert shown(5) == [False, False, False, False, True]


def test_a_router_that_does_not_answer_is_said() -> None:
    assert "did not answer" in drawn(replace(VIEW, state=None, moves=[]))
    assert "no answer" in line(replace(VIEW, state=None))


def test_the_picture_in_one_line() -> None:
    text = line(VIEW)
    assert "35.0 s" in text
    assert "1P1D" in text
    assert "load 1.40/–" in text
    assert "in SLO 97% (static 55%)" in text


def test_rates_load_the_right_split_and_overload_the_even_one() -> None:
    curves = Curves.from_profile(load_profile("demo"))
    for engines in (4, 6, 8):
        prompts, answers, _ = turning_phases(curves, engines, 90)
        busy = prompts.rate_per_s * curves.prefill_s(prompts.prompt_tokens)
        assert engines / 2 < busy < engines - 1
        interval_s = curves.interval_s(curves.max_num_seqs, 0)
        seats = answers.rate_per_s * answers.max_tokens * interval_s
        assert engines / 2 * curves.max_num_seqs < seats < (engines - 1) * curves.max_num_seqs


def expanded(tmp_path: Any) -> Expanded:
    path = tmp_path / "fleet.yaml"
    path.write_text(fleet_yaml(FleetPlan("demo", 4, 2)))
    return open_fleet(path)


def test_the_report_compares_both_fleets_and_counts_each_turn_s_moves(tmp_path: Any) -> None:
    phases = turning_phases(Curves.from_profile(load_profile("demo")), 4, 90)
    schedule = poisson(phases, seed=1)

    def outcome(planned: Planned, met: bool) -> Outcome:
        first = planned.t_s + (0.5 if met else 9.0)
        return Outcome(planned, planned.t_s, "served", 200, first, first + 0.1, 10, first + 0.1)

    moving = [outcome(planned, True) for planned in schedule]
    static = [outcome(planned, planned.kind == PREFILL_HEAVY) for planned in schedule]
    result = report(phases, moving, static, expanded(tmp_path), [MOVE], "http://127.0.0.1:8000")
    data = result.data()
    assert data["offered"] == data["served"] == len(schedule)
    assert (data["failed"], data["attainment"], data["time_to_adapt_s"]) == (0, 1.0, None)
    assert 0 < data["attainment_static"] < 1
    assert [turn["moves"] for turn in data["turns"]] == [0, 1, 0]
    assert [(turn["fell"], turn["fell_static"]) for turn in data["turns"]] == [
        (False, False),
        (False, True),
        (False, False),
    ]
    assert data["turns"][1]["time_to_adapt_static_s"] is None
    late = [outcome(p, p.kind == PREFILL_HEAVY or p.t_s > data["turns"][1]["at_s"] + 12) for p in schedule]
    adapted = report(phases, late, static, expanded(tmp_path), [MOVE], "http://127.0.0.1:8000")
    assert 10.0 <= (adapted.time_to_adapt_s or 0.0) <= 13.0
    assert report(phases, static, static, expanded(tmp_path), [], "").time_to_adapt_s is None
    text = "\n".join(summary_lines(result))
    assert "local/1 decode → prefill: TTFT 1.31 of its target" in text
    assert "2P2D stays" in text
    assert "never below" in text
