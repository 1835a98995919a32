"""The engines of the fleet as a running router has them: connections, looks, and what control is told of each."""

from typing import NamedTuple

import msgspec

from narwhal.control import Curves
from narwhal.control.commands import AnyCommand
from narwhal.control.events import EngineJoined, EngineLeft, EngineRetired, EngineRevised
from narwhal.fleet import Profile, load_profile
from narwhal.fleet.expanded import EngineSpec
from narwhal.fleet.model import Fleet, Role, SimulatedRuntime
from narwhal.router.probes import Probes
from narwhal.router.reach import Reach
from narwhal.router.shell import Shell
from narwhal.router.upstream import Pool


class Members:
    """Lets engines join and leave. `reach`: how those that join from now on are reached."""

    def __init__(self, shell: Shell, probes: Probes, reach: Reach) -> None:
        self.urls: dict[str, str] = {}
        """Where each engine is reached."""
        self._shell = shell
        self._probes = probes
        self.reach = reach
        self._curves: Curves | None = None
        self._measured = False
        self._learned: dict[str, Curves] = {}
        """Curves measured for the contract that an engine runs with."""
        self._rooms: dict[str, int] = {}
        """KV capacity that an engine tells, in tokens."""
        self.specs: dict[str, EngineSpec] = {}
        self._fleet: Fleet | None = None
        self._told: dict[str, _Facts] = {}
        """What control was told last of each engine."""
        self._returning: dict[str, EngineSpec] = {}
        """Engines that join once one of the same id has left."""
        shell.left = self._left

    def use_profile(self, fleet: Fleet, profile: Profile) -> None:
        """Have engines, those that join from now on and at their next `revise`, be as fast as a profile says."""
        self._fleet = fleet
        self._curves = engine_curves(fleet, profile)
        self._measured = isinstance(fleet.engines.runtime, SimulatedRuntime)

    def join(self, engine: EngineSpec) -> None:
        """Make an engine part of the fleet; it gets work once it is seen healthy."""
        shell = self._shell
        if engine.id in shell.control.pool.engines:
            self._returning[engine.id] = engine
            return
        shell.connect(engine.id, engine.url, self.reach)
        self.urls[engine.id] = engine.url
        self.specs[engine.id] = engine
        facts = self._told[engine.id] = self._facts(engine)
        self._introduce(engine, facts)
        self._probes.watch(engine.id)

    def _introduce(self, engine: EngineSpec, facts: "_Facts") -> None:
        now = self._shell.now()
        self._shell.feed(
            EngineJoined(now, engine.id, engine.role, facts.curves, facts.measured, facts.pin, device=facts.device)
        )

    def retire(self, engine: str, drain_s: float) -> None:
        """Take an engine out of the fleet: it may finish what it has for so long."""
        self._returning.pop(engine, None)
        now = self._shell.now()
        self._shell.feed(EngineRetired(now, engine, now + drain_s))

    def revise(self, engine: EngineSpec) -> list[AnyCommand]:
        """Tell control what the fleet file says of an engine that stays, where that has changed; what it answers."""
        if engine.id in self._returning:
            self._returning[engine.id] = engine
            return []
        self.specs[engine.id] = engine
        facts = self._facts(engine)
        if facts == self._told[engine.id]:
            return []
        self._told[engine.id] = facts
        return self._shell.feed(EngineRevised(self._shell.now(), engine.id, *facts))

    def rejoin(self) -> None:
        """Control is another, which may know other engines, or other things of them: tell it what there is."""
        shell = self._shell
        for name in [name for name in shell.control.pool.engines if name not in self.specs]:
            shell.feed(EngineLeft(shell.now(), name))
        for name, spec in self.specs.items():
            facts = self._told[name]
            if name in shell.control.pool.engines:
                shell.feed(EngineRevised(shell.now(), name, *facts))
            else:
                self._introduce(spec, facts)
            shell.probe(name)

    def pool(self, engine: str) -> Pool:
        """Connections to an engine."""
        return self._shell.pools[engine]

    def learn(self, engine: str, profile: Profile | None, kv_capacity_tokens: int | None = None) -> None:
        """Take an engine to be as fast as the profile of its contract says.

        None: it has none, so as the prior says, with the KV capacity that it tells itself.
        """
        spec = self.specs.get(engine)
        if spec is None or self._fleet is None:
            return
        if kv_capacity_tokens is not None:
            self._rooms[engine] = kv_capacity_tokens
        if profile is None:
            self._learned.pop(engine, None)
        else:
            self._learned[engine] = engine_curves(self._fleet, profile)
        self.revise(spec)

    def _facts(self, engine: EngineSpec) -> "_Facts":
        assert self._curves is not None
        learned = self._learned.get(engine.id)
        measured = self._measured or learned is not None
        prior = self._curves
        if not measured and engine.id in self._rooms:
            prior = msgspec.structs.replace(prior, kv_capacity_tokens=self._rooms[engine.id])
        return _Facts(learned or prior, measured, engine.pin, engine.shared_device or "")

    def _left(self, engine: str) -> None:
        """Control let an engine go: nothing runs on it any more."""
        if engine not in self.specs:
            return  # another router's
        self._probes.forget(engine)
        self._shell.disconnect(engine)
        del self.urls[engine], self._told[engine], self.specs[engine]
        self._learned.pop(engine, None)
        self._rooms.pop(engine, None)
        returning = self._returning.pop(engine, None)
        if returning is not None:
            self.join(returning)


class _Facts(NamedTuple):
    """What control is told of an engine beyond its name and first role, in the order of `EngineRevised`."""

    curves: Curves
    measured: bool
    pin: Role | None
    device: str


def fleet_profile(fleet: Fleet) -> Profile:
    """The profile that a fleet's engines are taken to be like. Raises `ProfileError`."""
    runtime = fleet.engines.runtime
    return load_profile(runtime.profile if isinstance(runtime, SimulatedRuntime) else fleet.profiles.prior)


def engine_curves(fleet: Fleet, profile: Profile) -> Curves:
    """The profile's curves, at the simulated speed, with the limits that the fleet file sets."""
    engines, base = fleet.engines, Curves.from_profile(profile)
    speed = engines.runtime.speed if isinstance(engines.runtime, SimulatedRuntime) else 1.0
    times = ("t_min_s", "a_s", "b_s", "c_s", "d0_s", "d1_s", "d2_s", "transfer_t0_s")
    scaled = {name: getattr(base, name) / speed for name in times}
    return msgspec.structs.replace(
        base,
        **scaled,
        transfer_bytes_per_s=base.transfer_bytes_per_s * speed,
        max_num_seqs=engines.max_num_seqs,
        chunk_tokens=engines.max_num_batched_tokens,
    )
