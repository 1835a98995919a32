"""The journal is read back by places: nothing twice, nothing left out, whatever is rotated meanwhile."""

import json
from pathlib import Path

import pytest

from narwhal.router import reading
from narwhal.router.journal import RotatingFile
from narwhal.router.reading import PlaceError, rows_after


def numbers(file: Path, after: str) -> tuple[list[int], str]:
    """Everything after a place, and the place after it."""
    found: list[int] = []
    more = True
    while more:
        rows, after, more = rows_after(file, after)
        found += [json.loads(bytes(row)) for row in rows]
    return found, after


def test_rows_are_read_on_over_rotations(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    rows, place, more = rows_after(file, None)
    assert (rows, more) == ([], False)
    assert numbers(file, place) == ([], place)
    journal = RotatingFile(file, max_bytes=40, keep=8)
    seen: list[int] = []
    for number in range(60):
        journal.write(b"%d\n" % number)
        if number % 7 == 0:
            got, place = numbers(file, place)
            seen += got
    seen += numbers(file, place)[0]
    journal.close()
    assert len(list(tmp_path.iterdir())) > 3
    assert seen == list(range(60))


def test_the_end_is_where_later_rows_begin(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    file.write_bytes(b"1\n2\n")
    place = rows_after(file, None)[1]
    assert numbers(file, place)[0] == []
    with file.open("ab") as more:
        more.write(b"3\n4")  # the last one is being written
    got, place = numbers(file, place)
    assert got == [3]
    with file.open("ab") as more:
        more.write(b"5\n")
    assert numbers(file, place)[0] == [45]


def test_long_journals_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_BYTES", 10)
    file = tmp_path / "journal.jsonl"
    place = rows_after(file, None)[1]
    file.write_bytes(b"".join(b"%d\n" % number for number in range(100)))
    rows, _, more = rows_after(file, place)
    assert more
    assert len(rows) < 10
    assert numbers(file, place)[0] == list(range(100))


@pytest.mark.parametrize("place", ["", "x", "1", "1-2-3", "-1-0"])
def test_what_is_no_place_is_said_to_be_none(tmp_path: Path, place: str) -> None:
    (tmp_path / "journal.jsonl").write_bytes(b"1\n")
    with pytest.raises(PlaceError, match="no place"):
        rows_after(tmp_path / "journal.jsonl", place)


def test_a_place_in_a_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    file.write_bytes(b"1\n")
    inode = file.stat().st_ino
    with pytest.raises(PlaceError, match="not kept any more"):
        rows_after(file, f"{inode + 1}-0")
