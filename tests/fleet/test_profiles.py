"""Profiles: shipped ones by name, others by path, and clear errors."""

import json
from pathlib import Path

import pytest

from narwhal.documents import data_path
from narwhal.fleet import ProfileError, load_profile, profile_names


def test_the_shipped_profiles() -> None:
    assert profile_names() == ["70b-4xh100", "8b-h100", "8b-h200", "cpu-tiny", "demo"]
    assert load_profile("demo").decode.d0_s == 0.03


def test_a_profile_of_ones_own_is_read_by_its_path(tmp_path: Path) -> None:
    document = json.loads(data_path("templates", "profiles", "demo.json").read_text()) | {"name": "mine"}
    (tmp_path / "mine.json").write_text(json.dumps(document))
    assert load_profile(str(tmp_path / "mine.json")).name == "mine"


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not JSON"), ('{"kind": "Profile"}', "name"), ('{"kind": "Other"}', "kind"), ("[]", "document")],
)
def test_a_bad_profile_says_what_is_wrong(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(content)
    with pytest.raises(ProfileError, match=message) as error:
        load_profile(str(file))
    assert str(file) in str(error.value)


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(ProfileError, match="8b-h100"):
        load_profile("demi")
    with pytest.raises(ProfileError, match="cannot read"):
        load_profile("./none.json")


def test_the_h200_profile_is_within_the_error_that_it_states() -> None:
    points = {64: 0.02308, 256: 0.02456, 512: 0.02926, 1024: 0.03493, 2048: 0.05759, 8192: 0.23348, 15872: 0.50439}
    curve = load_profile("8b-h200").prefill
    for n, seconds in points.items():
        fit = max(curve.t_min_s, curve.a_s + curve.b_s_per_token * n + curve.c_s_per_token2 * n * n)
        assert abs(fit / seconds - 1) <= 0.081
