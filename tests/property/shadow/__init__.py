"""A shadow of a fleet: engines, links, clients and an operator without a process, which answer `Control`'s commands."""

from tests.property.shadow.story import Mix, Story

__all__ = ["Mix", "Story"]
