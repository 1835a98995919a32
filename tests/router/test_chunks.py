"""Following a chunked body: any split of its bytes gives the same result."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.router.chunks import MAX_CHUNK, ChunkError, ChunkTracker, Dechunker, dechunk
from tests.router.harness import END, chunk, event, token

CONTENTS = st.lists(
    st.one_of(st.binary(min_size=1, max_size=40), st.just(b"\r\n\r\n0\r\n\r\n"), st.just(b'data: {"a":1}\n\n')),
    max_size=6,
)
TRAILERS = st.sampled_from([b"", b"x-a: b\r\n", b"x-a: b\r\ny: z\r\n"])
EXTENSIONS = st.sampled_from([b"", b";a=b", b" ; a"])


def encode(contents: list[bytes], trailers: bytes, extension: bytes) -> bytes:
    chunks = [b"%x%s\r\n%s\r\n" % (len(data), extension, data) for data in contents]
    return b"".join(chunks) + b"0%s\r\n%s\r\n" % (extension, trailers)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


@settings(deadline=None)
@given(CONTENTS, TRAILERS, EXTENSIONS, st.lists(st.integers(0, 2000), max_size=12))
def test_any_split_passes_the_same_bytes(
    contents: list[bytes], trailers: bytes, extension: bytes, cuts: list[int]
) -> None:
    body = encode(contents, trailers, extension)
    whole = ChunkTracker()
    assert whole.feed(body) == body
    assert whole.done
    tracker, dechunker = ChunkTracker(), Dechunker()
    passed, content = [], b""
    for piece in split(body, cuts):
        assert not tracker.done
        passed.append(tracker.feed(piece))
        content += dechunker.feed(piece)
    assert b"".join(passed) == body
    assert tracker.done
    assert not tracker.surplus
    assert tracker.frames == whole.frames == body.count(b"data: ")
    assert content == b"".join(contents) == dechunk(body)


@settings(deadline=None)
@given(CONTENTS, st.lists(st.integers(0, 2000), max_size=12))
def test_what_has_passed_always_ends_at_a_chunk_boundary(contents: list[bytes], cuts: list[int]) -> None:
    boundaries = {0}
    body = b""
    for data in contents:
        body += chunk(data)
        boundaries.add(len(body))
    tracker, passed = ChunkTracker(), 0
    for piece in split(body, cuts):
        passed += len(tracker.feed(piece))
        assert passed in boundaries


@settings(deadline=None)
@given(st.binary(max_size=80), st.lists(st.integers(0, 80), max_size=4))
def test_garbage_is_refused_or_held_but_never_passed_on_as_more_than_came(data: bytes, cuts: list[int]) -> None:
    tracker, passed = ChunkTracker(), b""
    try:
        for piece in split(data, cuts):
            passed += tracker.feed(piece)
            if tracker.done:
                break
    except ChunkError:
        pass
    assert data.startswith(passed)


@pytest.mark.parametrize(
    "line",
    [
        b"5\n",
        b"5\x0b",
        b"5;\na",
        b"5;a\rb",
        b" 5",
        b"5\0",
        b"g",
        b"-1",
        b"+1",
        b"0x5",
        b"1_0",
        b"",
        b" ",
        b"5 5",
        b"%x" % (MAX_CHUNK + 1),
    ],
)
def test_a_size_line_is_hexadecimal_digits_and_nothing_else(line: bytes) -> None:
    with pytest.raises(ChunkError):
        ChunkTracker().feed(line + b"\r\nabcde\r\n")


def test_a_chunk_longer_than_its_size_is_refused() -> None:
    with pytest.raises(ChunkError):
        ChunkTracker().feed(b"3\r\nabcde\r\n0\r\n\r\n")


def test_a_size_line_and_trailers_have_a_limit() -> None:
    with pytest.raises(ChunkError):
        ChunkTracker().feed(b"1;" + b"a" * 2000)
    with pytest.raises(ChunkError):
        ChunkTracker().feed(b"0\r\n" + b"a: b\r\n" * 20000)


@pytest.mark.parametrize("trailers", [b"a\r\n", b"a : b\r\n", b"a: b\nc: d\r\n", b" a: b\r\n", b"a: \0\r\n"])
def test_trailers_are_header_lines(trailers: bytes) -> None:
    """They are relayed, so a client must understand them."""
    with pytest.raises(ChunkError):
        ChunkTracker().feed(token(" a") + b"0\r\n" + trailers + b"\r\n")


def test_bytes_after_the_end_are_noticed_and_not_passed() -> None:
    tracker = ChunkTracker()
    assert tracker.feed(token(" a") + END + b"HTTP/1.1 200") == token(" a") + END
    assert tracker.surplus


def test_usage_is_remembered_wherever_the_read_ends() -> None:
    body = token(" a") + event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}) + END
    for cut in range(len(body)):
        tracker = ChunkTracker()
        tracker.feed(body[:cut])
        tracker.feed(body[cut:])
        assert tracker.usage.startswith(b'"usage":{"prompt_tokens":3,"completion_tokens":1}')
