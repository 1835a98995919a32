from narwhal.engine.simulated.faults import Fault, Faults


def test_a_fault_with_a_count_strikes_that_often() -> None:
    faults = Faults()
    faults.add(Fault("refuse", count=2), 0.0)
    assert [faults.strike(1.0, "refuse") is not None for _ in range(3)] == [True, True, False]


def test_a_fault_with_a_duration_is_over_afterwards() -> None:
    faults = Faults()
    faults.add(Fault("hang", duration_s=5, scope="prefill"), 10.0)
    assert faults.hung(14.9, "prefill")
    assert not faults.hung(14.9, "decode")
    assert not faults.hung(15.0, "prefill")


def test_a_fault_for_one_leg_leaves_the_other_alone() -> None:
    faults = Faults()
    faults.add(Fault("status", leg=1), 0.0)
    assert faults.strike(0.0, "status", leg=2) is None
    assert faults.strike(0.0, "status", leg=None) is None
    assert faults.strike(0.0, "status", leg=1) is not None


def test_slow_faults_multiply() -> None:
    faults = Faults()
    faults.add(Fault("slow", factor=2), 0.0)
    faults.add(Fault("slow", factor=3), 0.0)
    assert faults.slowness(0.0) == 6


def test_cleared_faults_are_gone() -> None:
    faults = Faults()
    faults.add(Fault("hang"), 0.0)
    faults.clear()
    assert faults.active(0.0) == []
