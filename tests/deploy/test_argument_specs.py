"""What is rendered is what the roles declare, by Ansible's own reading of their `argument_specs`."""

from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from narwhal.documents import data_path
from tests.deploy.goldens import EXAMPLES, rendered

ROLES = sorted(path.parents[1].name for path in data_path("playbooks", "roles").glob("*/meta/argument_specs.yml"))


def declared(role: str) -> dict[str, Any]:
    """The fleet's variables that a role takes; those that come with the command line are left out."""
    specs = yaml.safe_load(data_path("playbooks", "roles", role, "meta", "argument_specs.yml").read_text())
    options: dict[str, Any] = specs["argument_specs"]["main"]["options"]
    return {name: option for name, option in options.items() if name.startswith("narwhal_")}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("role", ROLES)
def test_the_examples_render_to_what_a_role_takes(role: str, name: str) -> None:
    files = rendered(name)
    everywhere = yaml.safe_load(files["group_vars/all.yml"])
    # a fleet that was not packaged yet has no revision; gate B says so
    everywhere["narwhal_revision"] = "sha256:" + "0" * 64
    options = declared(role)
    hosts = [path for path in files if path.startswith("host_vars/")]
    assert hosts
    for path in hosts:
        variables = everywhere | yaml.safe_load(files[path])
        given = {key: value for key, value in variables.items() if key in options}
        assert ArgumentSpecValidator(options).validate(given).error_messages == [], (role, path)
