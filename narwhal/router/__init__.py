"""What happens now: the uvloop data plane, and the shell that drives `control/` with real time and sockets."""

from narwhal.router.errors import ServeError
from narwhal.router.lease import StoreError as LeaseError
from narwhal.router.lease import revoke
from narwhal.router.serve import serve

__all__ = ["LeaseError", "ServeError", "revoke", "serve"]
