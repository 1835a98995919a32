"""What the router counts, apart from any request: bounds at the SLO's scale, judgements, gates, transports."""

import msgspec
import pytest

from narwhal.control.records import Decision, Guard
from narwhal.fleet.model import PromptTarget, Slo
from narwhal.router.metrics import UNTOLD, Metrics, bounds
from narwhal.router.rows import RequestRow

SERVED = RequestRow(
    1, "id", "acme", 0.0, "served", "", "/v1/completions", True, False, 100, 16, "a/0", "b/0", 0, 0.5, 0.6, 0.02, 1.0,
    True, queued_s=0.1,
)  # fmt: skip


def metrics(slo: Slo | None = None) -> Metrics:
    made = Metrics()
    made.scale(slo or Slo(ttft_s=2.0, tpot_s=0.05))
    return made


@pytest.mark.parametrize("target", [0.013, 0.05, 0.3, 2.0, 7.7, 120.0])
def test_bounds_rise_and_the_target_is_one_of_them(target: float) -> None:
    found = bounds([target])
    assert list(found) == sorted(set(found))
    assert target in found
    assert (found[0], found[-1]) == (pytest.approx(target / 40, rel=0.01), pytest.approx(target * 10, rel=0.01))
    assert len([bound for bound in found if target / 2 <= bound <= 2 * target]) >= 6


def test_each_target_by_prompt_is_a_bound() -> None:
    made = metrics(Slo(ttft_s=10.0, tpot_s=0.05, ttft_by_prompt=[PromptTarget(up_to_tokens=100, ttft_s=0.77)]))
    assert {0.77, 10.0} < set(made.ttft.bounds)
    assert made.queued.bounds == made.ttft.bounds


def test_another_slo_begins_only_the_histograms_anew_whose_target_changed() -> None:
    made = metrics()
    made.ended(SERVED, declared=False)
    made.scale(Slo(ttft_s=2.0, tpot_s=0.05, attainment=0.5))
    assert (sum(made.ttft.counts), sum(made.tpot.counts)) == (1, 1)
    made.scale(Slo(ttft_s=2.0, tpot_s=0.1))
    assert (sum(made.ttft.counts), sum(made.tpot.counts)) == (1, 0)


def test_what_a_client_cancelled_or_asked_wrongly_is_not_judged() -> None:
    made = metrics()
    for change in (
        {},
        {"outcome": "refused", "code": "queue", "slo_met": False},
        {"outcome": "cut", "code": "upstream", "slo_met": False},
        {"outcome": "refused", "code": "client", "slo_met": False},
        {"outcome": "cancelled", "slo_met": False},
    ):
        made.ended(msgspec.structs.replace(SERVED, **change), declared=True)
    assert (made.judged.all, made.judged.met) == (3, 1)
    assert (made.tenants_judged["acme"].all, made.tenants_judged["acme"].met) == (3, 1)
    assert made.tenants["acme", "refused", "queue"] == 1
    assert made.count("refused") == 2


def test_a_first_leg_is_timed_where_no_engine_failed_the_request() -> None:
    made = metrics()
    made.ended(SERVED, declared=False)
    made.ended(msgspec.structs.replace(SERVED, retries=1), declared=False)
    assert (made.prefills["a/0"].count, made.prefills["a/0"].total) == (1, pytest.approx(0.4))
    assert made.paces["b/0"].count == 2
    assert sum(made.queued.counts) == 2
    assert not made.tenants
    made.forget("a/0")
    assert not made.prefills


def test_a_transport_changes_when_another_is_told() -> None:
    made = metrics()
    for transport in ("rdma", "", "rdma", "tcp"):
        made.carried("a/0", "b/0", transport)
    made.carried("a/0", "c/0", "tcp")
    assert made.transport_changes == {("a/0", "b/0"): 1, ("a/0", "c/0"): 0}
    assert made.transports["a/0", "b/0"] == "tcp"
    made.forget("b/0")
    assert set(made.transports) == {("a/0", "c/0")}


def test_gates_that_held_are_counted_once_for_each_decision() -> None:
    made = metrics()
    guards = (Guard("dwell_s", False, 1, 2, "a"), Guard("dwell_s", False, 1, 2, "b"), Guard("cooldown_s", True, 1, 2))
    held = Decision(7, 0.0, "urgency", "reactive", 1, 1, "held", "", guards=guards)
    made.decided(held)
    made.decided(msgspec.structs.replace(held, outcome="moved"))
    made.moved("decode", held)
    made.moved("decode", None)
    assert made.shut == {"dwell_s": 1}
    assert made.decisions == {"held": 1, "moved": 1}
    assert made.moves == {
        ("prefill", "step"): 0,
        ("decode", "step"): 0,
        ("decode", "urgency"): 1,
        ("decode", UNTOLD): 1,
    }
