"""A fleet that is rolled from one contract to the next: legs pair inside a cohort, and a lone engine serves both."""

from hypothesis import given
from hypothesis import strategies as st

from narwhal.control import cohorts
from narwhal.control.commands import Decided, StartDecode, StartPrefill, StartWhole, TryPair
from narwhal.control.events import EngineChecked, EngineUp, FirstToken, MoveRequested, PairTried, RequestFinished, Tick
from tests.control.driving import CURVES, Driver, check_sums, only

TOLD = st.lists(st.tuples(st.sampled_from(["", "f1", "f2"]), st.sampled_from(["", "a1", "a2", "a3"])), max_size=12)


@given(TOLD)
def test_who_is_known_to_differ_is_never_in_one_cohort_and_who_is_known_to_agree_always(
    told: list[tuple[str, str]],
) -> None:
    names = cohorts.names(told)
    known = [(pair, name) for pair, name in zip(told, names, strict=True) if all(pair)]
    for pair, name in known:
        for other, other_name in known:
            assert (name == other_name) is (pair == other)
    forms = [(form, name) for (form, _), name in zip(told, names, strict=True) if form]
    for own, name in forms:
        for another, other_name in forms:
            assert own == another or name != other_name


@given(TOLD)
def test_an_engine_that_tells_less_never_stands_alone_while_it_may_belong_to_others(
    told: list[tuple[str, str]],
) -> None:
    names = cohorts.names(told)
    for (form, attested), name in zip(told, names, strict=True):
        if form and attested:
            continue
        others = [n for (f, a), n in zip(told, names, strict=True) if f and (not form or f == form) and (a or not form)]
        assert not others or name in others


@given(TOLD, st.randoms())
def test_the_order_of_engines_does_not_matter(told: list[tuple[str, str]], random: object) -> None:
    order = list(range(len(told)))
    random.shuffle(order)  # type: ignore[attr-defined]
    names = cohorts.names(told)
    assert cohorts.names([told[n] for n in order]) == [names[n] for n in order]


def test_a_silent_sidecar_does_not_part_a_fleet() -> None:
    assert cohorts.names([("f", "a"), ("f", ""), ("f", "a"), ("", "")]) == ["f.a"] * 4
    assert cohorts.names([("f", ""), ("f", "")]) == ["f", "f"]
    assert cohorts.names([("", ""), ("", "")]) == ["", ""]


def roll(driver: Driver, name: str, form: str, attested: str = "") -> None:
    """An engine tells another contract than before."""
    driver.feed(EngineChecked(driver.t, name, "life-1", "c", form=form, attested=attested))


def test_a_lone_engine_of_either_role_serves_both_legs_and_nothing_is_handed_over_between_cohorts() -> None:
    for role in ("e1", "e3"):
        driver = Driver("ppdd")
        for name in ("e0", "e1", "e2", "e3"):
            roll(driver, name, "old", "a")
        assert driver.pool.lone == ()
        roll(driver, role, "old", "b")
        assert list(driver.pool.lone) == [role]
        whole = 0
        for number in range(12):
            for command in driver.arrive(number, prompt_tokens=900, t=number * 0.01):
                if isinstance(command, StartWhole):
                    assert command.engine == role
                    whole += 1
        assert whole >= 1
        for number in list(driver.pool.requests):
            if driver.pool.requests[number].prefill_engine and not driver.pool.requests[number].decode_engine:
                for command in driver.prefilled(number, 5.0):
                    if isinstance(command, StartDecode):
                        assert role not in (command.producer, command.engine)
        check_sums(driver.control)


def test_the_second_engine_of_a_cohort_pairs_with_the_first() -> None:
    driver = Driver("ppdd")
    for name, form in (("e0", "new"), ("e1", "old"), ("e2", "old"), ("e3", "new")):
        roll(driver, name, form)
    assert driver.pool.lone == ()
    served = set()
    for number in range(8):
        start = only(driver.arrive(number, t=float(number)), StartPrefill)
        decode = only(driver.prefilled(number, number + 0.5), StartDecode)
        served.add((start.engine, decode.engine))
        driver.feed(FirstToken(number + 0.6, number))
        if number % 2:
            driver.feed(RequestFinished(number + 0.7, number, 3))
    assert served <= {("e0", "e3"), ("e1", "e2")}
    assert len(served) >= 1


def test_a_whole_fleet_of_lone_engines_serves() -> None:
    driver = Driver("pd", recovery={"degraded": "refuse"})
    roll(driver, "e0", "new")
    roll(driver, "e1", "old")
    assert driver.pool.lone == ("e0", "e1")
    started = [only(driver.arrive(number), StartWhole).engine for number in range(2)]
    assert set(started) == {"e0", "e1"}


def test_a_new_engine_is_tried_with_peers_of_its_cohort_alone() -> None:
    driver = Driver("ppdd", recovery={"readmit_after": 1})
    for name in ("e0", "e1", "e2", "e3"):
        roll(driver, name, "old")
    for name in ("e3", "e2"):
        before = len(driver.commands)
        t = driver.t + 1.0
        driver.feed(EngineUp(t, name, "life-2"))
        driver.feed(EngineUp(t + 1, name, "life-2"))
        driver.feed(EngineChecked(t + 1, name, "life-2", "c", form="new"))
        for _ in range(3):
            trials = [c for c in driver.commands[before:] if isinstance(c, TryPair)]
            trial = trials[-1]
            from_new = {trial.producer, trial.consumer} <= {"e3", "e2"}
            assert from_new, trial
            if driver.control.health.trials.open:
                driver.feed(_right(t + 2, trial))
        driver.feed(EngineUp(t + 3, name, "life-2"))
        assert driver.engine(name).open
    assert sorted(driver.pool.lone) == ["e0", "e1", "e2", "e3"]
    driver.feed(Tick(driver.t + 1))


def _right(t: float, trial: TryPair) -> PairTried:
    return PairTried(t, trial.number, trial.producer, trial.consumer, "right")


def test_what_was_learned_of_one_contract_is_not_held_of_another() -> None:
    driver = Driver("ppd", measured=False)
    for name in ("e0", "e1", "e2"):
        roll(driver, name, "old")
    first, second = driver.engine("e0"), driver.engine("e1")
    assert first.meter.learned is second.meter.learned
    roll(driver, "e1", "new")
    assert first.meter.learned is not second.meter.learned
    assert second.curves == CURVES


def test_the_last_of_its_role_in_a_cohort_is_not_moved_away_from_its_partners() -> None:
    driver = Driver("ppddd", controller={"enabled": True, "thresholds": {"dwell_s": 0, "cooldown_s": 0}})
    for name, form in (("e0", "new"), ("e1", "old"), ("e2", "old"), ("e3", "old"), ("e4", "new")):
        roll(driver, name, form)
    said = only(driver.feed(MoveRequested(10.0, "e4", "prefill")), Decided).decision
    held = [guard for guard in said.guards if not guard.passed]
    assert [(guard.name, guard.value, guard.limit, guard.engine) for guard in held] == [("cohort", 0.0, 1.0, "e4")]
    said = only(driver.feed(MoveRequested(11.0, "e3", "prefill")), Decided).decision
    assert said.outcome == "moved"
    single = Driver("ppd", controller={"enabled": True, "thresholds": {"dwell_s": 0, "cooldown_s": 0}})
    said = only(single.feed(MoveRequested(10.0, "e0", "decode")), Decided).decision
    assert said.outcome == "moved"
    assert "cohort" not in [guard.name for guard in said.guards]
