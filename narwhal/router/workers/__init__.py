"""Several processes on one client port: one decides (`hub`), the others own the connections (`relay`); ADR 13.

A supervisor, which serves nothing itself, starts them and starts again what dies. Control and relays talk in batches
over a Unix socket each (`link`, `wire`): for a request, never for a chunk.
"""

from narwhal.router.workers.supervisor import supervise

__all__ = ["supervise"]
