"""The consumer's side of the side channel, with a real producer over loopback."""

import asyncio

import pytest

from narwhal.engine.simulated.blocks import CONTENT_BYTES
from narwhal.engine.simulated.peers import Consumer, PeerError, Producer


class KeptBlocks:
    """A store that has every block and admits everybody."""

    def read_blocks(self, blocks: list[int]) -> list[bytes]:
        return [bytes([block]) * CONTENT_BYTES for block in blocks]

    def transfer_s(self, block_count: int) -> float:
        return 0.0

    def release_pin(self, request_id: str) -> None: ...

    def renew_pin(self, request_id: str) -> None: ...

    def admits(self, engine_id: str) -> bool:
        return True

    def hung(self) -> bool:
        return False


async def _after_a_drop() -> None:
    producer, consumer = Producer("producer", "layout", KeptBlocks()), Consumer("consumer", "layout", 30.0)
    address = ("127.0.0.1", await producer.listen("127.0.0.1", 0))
    link = await consumer.meet(address)
    assert await link.fetch([7]) == KeptBlocks().read_blocks([7])[0].ljust(64, b"\0")
    broken = asyncio.create_task(link.fetch([7]))
    await asyncio.sleep(0)  # it has asked
    producer.drop(None)
    with pytest.raises(PeerError, match="broke"):
        await broken
    with pytest.raises(PeerError, match="broke"):  # whoever met the peer before and asks only now
        await link.fetch([7])
    assert await consumer.fetch(address, "producer", [7]) == KeptBlocks().read_blocks([7])
    consumer.drop(None)
    producer.close()


def test_a_fetch_on_a_link_that_broke_fails_instead_of_waiting_for_ever() -> None:
    asyncio.run(asyncio.wait_for(_after_a_drop(), 60))
