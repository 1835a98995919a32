"""Connections that are too slow or idle too long, on a clock that the test moves."""

import pytest

from narwhal.router.http import BODY_S, HEAD_S, IDLE_S, SEND_S, WAITING_BYTES, Connection
from tests.router.harness import post
from tests.router.wires import App, Clock, Transport


@pytest.fixture
def parts() -> tuple[Connection, Clock, Transport, App]:
    clock, transport, app = Clock(), Transport(), App()
    connection = Connection(app, clock)  # type: ignore[arg-type]
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, clock, transport, app


Parts = tuple[Connection, Clock, Transport, App]
REQUEST = post({"prompt": "hello"})


@pytest.mark.parametrize(("sent", "limit_s"), [(REQUEST[:30], HEAD_S), (REQUEST[:-1], BODY_S)], ids=["head", "body"])
def test_a_request_that_comes_too_slowly_is_refused(parts: Parts, sent: bytes, limit_s: float) -> None:
    connection, clock, transport, _ = parts
    connection.data_received(sent)
    clock.now += limit_s - 1
    connection.check_time(clock.now)
    assert transport.written == b""
    clock.now += 2
    connection.check_time(clock.now)
    assert transport.written.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in transport.written
    assert transport.ended or transport.closed
    for action in clock.later:
        action()
    assert transport.closed


def test_bytes_that_trickle_in_do_not_buy_time(parts: Parts) -> None:
    connection, clock, transport, _ = parts
    for byte in REQUEST[:30]:
        connection.data_received(bytes([byte]))
        clock.now += 1
        connection.check_time(clock.now)
    assert transport.written.startswith(b"HTTP/1.1 408 ")


def test_an_idle_connection_is_closed_without_a_word(parts: Parts) -> None:
    connection, clock, transport, _ = parts
    connection.data_received(REQUEST)
    written = transport.written
    clock.now += IDLE_S - 1
    connection.check_time(clock.now)
    assert not transport.closed
    clock.now += 2
    connection.check_time(clock.now)
    assert transport.closed
    assert transport.written == written


def test_a_request_that_is_being_served_is_left_alone(parts: Parts) -> None:
    connection, clock, transport, app = parts
    app.answers = False
    connection.data_received(REQUEST)
    clock.now += 10 * BODY_S
    connection.check_time(clock.now)
    assert transport.written == b""
    assert not transport.closed


def test_a_client_that_reads_nothing_is_cut_and_one_that_reads_a_little_is_not(parts: Parts) -> None:
    connection, clock, transport, app = parts
    app.answers = False
    connection.data_received(REQUEST)
    transport.unsent = 100_000
    connection.pause_writing()
    for _ in range(5):
        clock.now += SEND_S - 1
        transport.unsent -= 1
        connection.check_time(clock.now)
    assert not transport.cut
    clock.now += SEND_S + 1
    connection.check_time(clock.now)
    assert transport.cut


def test_nor_does_a_client_that_reads_nothing_keep_a_closing_connection(parts: Parts) -> None:
    connection, clock, transport, _ = parts
    connection.data_received(post({"prompt": "hello"}, extra="Connection: close\r\n"))
    transport.unsent = 100
    assert transport.closed
    connection.check_time(clock.now)
    clock.now += SEND_S - 1
    connection.check_time(clock.now)
    assert not transport.cut
    clock.now += 2
    connection.check_time(clock.now)
    assert transport.cut


def test_a_client_that_ends_its_side_while_it_waits_has_left(parts: Parts) -> None:
    connection, _, transport, app = parts
    connection.eof_received()
    assert not transport.cut  # the transport closes by itself, once everything is out
    app.answers = False
    connection.data_received(REQUEST)
    connection.eof_received()
    assert transport.cut


def test_reading_goes_on_until_enough_requests_wait(parts: Parts) -> None:
    """Who reads on hears of it when the client leaves."""
    connection, _, transport, app = parts
    app.answers = False
    for _ in range(3):
        connection.data_received(REQUEST)
    assert transport.reading
    connection.data_received(post({"prompt": "x" * WAITING_BYTES}))
    assert not transport.reading
    for _ in range(3):
        connection.respond(200, b"{}")
    assert transport.reading


def test_reading_stops_at_many_requests_however_small(parts: Parts) -> None:
    connection, _, transport, app = parts
    app.answers = False
    sent = 0
    while transport.reading:
        connection.data_received(REQUEST)
        sent += 1
    assert 4 < sent <= 10
    assert not transport.written
