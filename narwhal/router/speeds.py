"""How fast each engine is: the profile that was measured for the contract it runs with, looked up at each new life."""

import logging
from pathlib import Path

from narwhal.fleet import Profile, ProfileError
from narwhal.fleet.model import Fleet
from narwhal.profiling import EngineError, engine_facts, sharers, stored_profile
from narwhal.router.members import Members
from narwhal.router.probes import get

log = logging.getLogger("narwhal.router")


class Speeds:
    """Hands engines their measured profiles; one that has none goes by the prior, and says so in the log."""

    def __init__(self, members: Members, folder: Path) -> None:
        self._members = members
        self._folder = folder

    async def look(self, engine: str, page: bytes, fleet: Fleet, timeout_s: float) -> None:
        """Find the profile of an engine that was started again. Raises what `get` does."""
        members = self._members
        spec = members.specs.get(engine)
        if spec is None:
            return
        status, version = await get(members.pool(engine), "/version", timeout_s)
        try:
            facts = engine_facts(fleet, spec, sharers(members.specs.values(), spec), page, version)
        except EngineError as error:
            if status == 200:  # else it is not up yet, and is looked at again
                log.warning("%s has no contract: %s", engine, error)
            members.learn(engine, None)
            return
        members.learn(engine, self._stored(engine, facts.contract), facts.kv_capacity_tokens)

    def _stored(self, engine: str, contract: str) -> Profile | None:
        try:
            profile = stored_profile(self._folder, contract)
        except ProfileError as error:
            log.warning("%s goes by the prior: %s", engine, error)
            return None
        if profile is None:
            log.info("%s goes by the prior: contract %s has no profile", engine, contract)
        else:
            log.info("%s goes by profile %s", engine, profile.name)
        return profile
