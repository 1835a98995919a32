"""What the router calls an engine's standing."""

from narwhal.control.events import EngineDown, EngineUp
from narwhal.router.state import reason, standing
from tests.control.driving import Driver


def test_the_last_of_a_role_is_silent_while_looks_at_it_fail_and_its_reason_counts_them() -> None:
    fleet = Driver("pd")
    engine = fleet.engine("e1")
    assert (standing(engine), reason(fleet.settings, engine)) == ("live", "")
    fleet.feed(EngineDown(1.0, "e1", "timeout"))
    assert (standing(engine), reason(fleet.settings, engine)) == (
        "silent",
        "1 look failed; as the last decode engine it is out after 6 without an answer",
    )
    fleet.feed(EngineDown(2.0, "e1", "timeout"))
    assert reason(fleet.settings, engine).startswith("2 looks failed")
    fleet.feed(EngineUp(3.0, "e1", "life-1"))
    assert standing(engine) == "live"


def test_others_are_suspected_for_it_and_say_why() -> None:
    fleet = Driver("pdd")
    fleet.feed(EngineDown(1.0, "e1", "timeout"))
    engine = fleet.engine("e1")
    assert (standing(engine), reason(fleet.settings, engine)) == ("suspected", "timeout at a look")
