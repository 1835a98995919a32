"""What a listener serves, as its connections see it."""

from typing import TYPE_CHECKING, Protocol

from narwhal.router.incoming import Incoming

if TYPE_CHECKING:
    from narwhal.router.http import Connection


class App(Protocol):
    """What a listener serves."""

    max_body: int
    max_head: int
    max_buffered: int
    """Most bytes of bodies that all its connections may hold at a time."""
    buffered: int
    """Bytes of bodies that they hold now, from their arrival to a stream's first token or the end of the answer."""
    connections: set["Connection"]

    def handle(self, connection: "Connection", request: Incoming) -> None:
        """Answer, now or later; exactly one answer a request."""

    def judge(
        self, connection: "Connection", method: bytes, path: str, headers: dict[bytes, bytes], length: int
    ) -> int:
        """Refuse a request whose body is not small, before it is read. `length`: -1 when nobody knows it.

        Returns 0, or the number by which `Connection.judged` is told later. Raises `BadRequestError`.
        """

    def refused(self, code: str) -> None:
        """A request was refused before it was whole."""
