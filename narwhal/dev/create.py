"""Making an instance."""

from dataclasses import dataclass

from narwhal.dev.errors import DevError
from narwhal.dev.instance import Instance
from narwhal.dev.ports import is_free
from narwhal.dev.process import living
from narwhal.dev.template import PORT, FleetPlan, choose_template, fleet_yaml


@dataclass(frozen=True, slots=True)
class Created:
    """What `init` chose."""

    template: str
    why: str
    """Why this template, in a sentence."""
    port: int


def create(instance: Instance, *, template: str | None, engines: int, port: int | None, force: bool) -> Created:
    """Make a new instance in its directory, with ports that are free now.

    Without `port` clients get 8000, or a free port when that is taken. An instance that is there is replaced only
    with `force`, and only when nothing of it runs. Raises `DevError`.
    """
    name, why = choose_template(template)
    if running := living(instance.run):
        raise DevError(
            "running", f"the instance in {instance.path} is running: {', '.join(running)}", hint="narwhal dev down"
        )
    if instance.exists and not force:
        raise DevError(
            "exists",
            f"there is a dev instance in {instance.path} already",
            hint="narwhal dev up starts it; narwhal dev init --force replaces its fleet file",
        )
    chosen = port or (PORT if is_free(PORT) else None)
    text = fleet_yaml(FleetPlan("dev", engines, engines // 2, port=chosen))
    instance.create(name, engines, text)
    return Created(name, why, instance.expanded().routers[0].port)
