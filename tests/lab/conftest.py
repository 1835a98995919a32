"""Three hosts for the whole run of these tests, a bundle that is packaged once, and a fleet that is deployed once."""

from collections.abc import Iterator

import pytest

from tests.lab.hosts import Lab, lab_of
from tests.lab.playing import Fleet

SERVING = {
    "  per_host: 1": "  per_host: 2\n  api_key: {env: ENGINES_KEY}",
    "split: {prefill: 1, decode: 1}": "split: {prefill: 2, decode: 2}",
    "  primary: h3\n": (
        "  primary: h3\n  standby: h3\n  standby_port: 8002\n  admin: {standby_port: 8003}\n"
        "benchmark:\n  validity: {lag_p99_s: 30, stolen_share: 1}\n  points:\n"
        "    - {name: short, warmup_s: 1, duration_s: 3,"
        " traffic: {kind: rate, rate_rps: 4, prompt_tokens: 50, output_tokens: 4}}\n"
    ),
}
"""Two engines a host, a standby, one benchmark point, and a key that comes from a variable."""
SECRET = "tell-nobody-of-this-key"


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    with lab_of(3) as lab:
        for host in ("h1", "h2"):
            lab.ssh(host, "mkdir -p /models/tiny && echo '{}' > /models/tiny/config.json")
        yield lab


@pytest.fixture(scope="session")
def fleet(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """The smallest fleet; its bundle serves all others."""
    fleet = Fleet(lab, tmp_path_factory.mktemp("fleet"))
    fleet.narwhal("package", str(fleet.file), "--write")
    fleet.render()
    return fleet


@pytest.fixture(scope="session")
def declared(fleet: Fleet, lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """A fleet with all that is tried, which nothing was done with yet."""
    declared = Fleet(lab, tmp_path_factory.mktemp("deploy"))
    declared.take_bundle(fleet)
    for old, new in SERVING.items():
        declared.edit(old, new)
    (declared.file.parent / "secrets.yml").write_text(f"narwhal_environment: {{ENGINES_KEY: {SECRET}}}\n")
    return declared


@pytest.fixture(scope="session")
def served(declared: Fleet) -> Fleet:
    """The same, taken through all gates by `narwhal deploy`."""
    said = declared.operate("deploy", str(declared.file), "--yes", "--vars", "secrets.yml")
    assert said.code == 0, said.err
    return declared
