"""What a simulation takes from a fleet file and the profiles beside it."""

from pathlib import Path

import pytest

from narwhal.control import Curves
from narwhal.fleet import load_profile, open_fleet
from narwhal.fleet.profile import FitQuality, Measured
from narwhal.profiling import save_profile
from narwhal.simulate.setup import known_curves
from tests.fleet.fleets import BASE


def test_measured_profiles_are_looked_for_from_the_fleet_file_s_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `narwhal profile` writes them and `narwhal-serve` reads them, wherever it is called."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "fleet.yaml").write_text(BASE.replace("profiles: {", "profiles: {path: measured, "))
    quality = FitQuality(samples=1, mean_error=0.0, largest_error=0.0, left_out_error=0.0, domain={})
    measured = Measured(
        at="2026-01-01T00:00:00Z",
        version="0.26.0",
        engines=["gpu-1/0"],
        neighbours="none",
        prefill=quality,
        decode=quality,
    )
    profile = load_profile("8b-h200").model_copy(update={"contract": "c", "measured": measured})
    save_profile(tmp_path / "site" / "measured", profile)
    for folder, name in ((tmp_path, "site/fleet.yaml"), (tmp_path / "site", "fleet.yaml")):
        monkeypatch.chdir(folder)
        expanded = open_fleet(name)
        assert expanded.profiles.resolve() == tmp_path / "site" / "measured"
        assert known_curves(expanded, "gpu-1/0") == (Curves.from_profile(profile), "measured")
        assert known_curves(expanded, "gpu-1/1") == (Curves.from_profile(load_profile("8b-h100")), "prior")
    (tmp_path / "site" / "fleet.yaml").write_text(BASE)
    assert open_fleet("fleet.yaml").profiles == Path("profiles")
