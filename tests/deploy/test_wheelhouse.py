"""The wheels of a bundle are those that the target needs, whatever Python packages them."""

from pathlib import Path

import pytest

from narwhal.deploy.errors import DeployError
from narwhal.deploy.wheelhouse import Source, Target, collect, requirement_lines, requires
from tests.deploy.wheels import make_wheel

OLD = Target("3.11", "x86_64")
NEW = Target("3.13", "aarch64")


def names(wheels: list[Path]) -> list[str]:
    return [wheel.name.partition("-")[0] for wheel in wheels]


def test_markers_are_judged_by_the_target(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path,
        "a",
        requires=['b; python_version < "3.12"', 'c>=2; platform_machine == "aarch64"', 'd; extra == "more"', "e[x]"],
    )
    assert [one.name for one in requires(wheel, OLD)] == ["b", "e"]
    assert [one.name for one in requires(wheel, NEW)] == ["c", "e"]
    assert [one.name for one in requires(wheel, OLD, ["more"])] == ["b", "d", "e"]


@pytest.mark.e2e
def test_what_another_python_needs_is_fetched_and_what_it_does_not_is_left_out(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    make_wheel(there, "a", requires=['old; python_version < "3.12"', 'new; python_version >= "3.12"', "b[x]"])
    make_wheel(there, "b", requires=['extra_of_b; extra == "x"', 'never; sys_platform == "win32"'])
    for name in ("old", "new", "extra_of_b", "never"):
        make_wheel(there, name)
    for target, wanted in ((OLD, ["a", "b", "extra_of_b", "old"]), (NEW, ["a", "b", "extra_of_b", "new"])):
        into = tmp_path / target.python
        into.mkdir()
        assert names(collect(["a"], target, Source(there), into)) == wanted


@pytest.mark.e2e
def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    there, into = tmp_path / "there", tmp_path / "into"
    there.mkdir()
    into.mkdir()
    make_wheel(there, "a", tag="cp39-cp39-manylinux2014_x86_64")
    with pytest.raises(DeployError, match=r"Python 3.11 on x86_64.*a"):
        collect(["a"], OLD, Source(there), into)


def test_requirements_are_pinned_with_their_hashes() -> None:
    wheels = [Path("Some_Name-1.2-py3-none-any.whl"), Path("a-1-py3-none-any.whl")]
    assert (
        requirement_lines(wheels, ["sha256:x", "sha256:y"]) == "a==1 --hash=sha256:y\nsome-name==1.2 --hash=sha256:x\n"
    )
