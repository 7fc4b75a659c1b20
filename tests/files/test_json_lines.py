"""A crash can cut the last line short; every other damage is said."""

import json

import pytest

from dpfed.files.json_lines import DamagedLine, GrewElsewhere, append_line, drop_torn_line, read_lines
from tests.files.disk import full_disk, recorded

ENTRIES = [{"step": 0, "text": "a\u2028b\nü"}, {"step": 1}, {"deep": {"list": [1.5, None]}}]


@pytest.fixture
def file(tmp_path):
    for entry in ENTRIES:
        append_line(tmp_path / "lines.jsonl", entry)
    return tmp_path / "lines.jsonl"


def test_what_was_added_is_read(file):
    lines = read_lines(file)
    assert lines.entries == ENTRIES and lines.end == file.stat().st_size and not lines.torn
    assert file.read_text() == "".join(json.dumps(entry) + "\n" for entry in ENTRIES)


def test_a_line_cut_short_anywhere_is_told_apart(file):
    whole = file.read_bytes()
    append_line(file, {"step": 3})
    last = file.read_bytes()[len(whole) :]
    for cut in range(len(last)):  # also at its end, where only the newline is missing
        file.write_bytes(whole + last[:cut])
        lines = read_lines(file)
        assert (lines.entries, lines.end, lines.torn) == (ENTRIES, len(whole), cut > 0)
        drop_torn_line(file, lines)
        assert file.read_bytes() == whole


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b"3", b"null", b'{"a": "\xff"}', b"[" * 100_000])
def test_a_complete_line_that_is_no_object_is_named(file, damage):
    file.write_bytes(file.read_bytes() + damage + b'\n{"step": 4}\n')
    with pytest.raises(DamagedLine) as error:
        read_lines(file)
    assert error.value.number == 4


def test_an_added_line_is_on_disk_and_so_is_the_files_name(tmp_path, monkeypatch):
    events = recorded(monkeypatch)
    append_line(tmp_path / "lines.jsonl", {"a": 1})
    append_line(tmp_path / "lines.jsonl", {"b": 2})
    first, second = b'{"a": 1}\n', b'{"b": 2}\n'
    assert events == [("sync", "lines.jsonl", first), ("sync", tmp_path.name, None), ("sync", "lines.jsonl", first + second)]


def test_a_file_that_another_process_wrote_to_is_left_alone(file):
    end = file.stat().st_size
    assert append_line(file, {"mine": 1}, end) == file.stat().st_size > end
    before = file.read_bytes()
    with pytest.raises(GrewElsewhere):
        append_line(file, {"mine": 2}, end)
    assert file.read_bytes() == before


@pytest.mark.parametrize("room", [0, 4, 100])
def test_of_a_line_that_does_not_fit_on_the_disk_nothing_stays(file, monkeypatch, room):
    whole = file.read_bytes()
    with full_disk(monkeypatch, room), pytest.raises(OSError, match="No space left"):
        append_line(file, {"step": 3})
    assert file.read_bytes() == whole
    append_line(file, {"step": 3})
    assert read_lines(file).entries == [*ENTRIES, {"step": 3}]


def test_a_torn_line_is_cut_off_at_the_known_length(file):
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"ste')
    lines = read_lines(file)
    file.write_bytes(whole + b'{"step": 3}\n')  # it was being written
    with pytest.raises(GrewElsewhere):
        drop_torn_line(file, lines)
    assert file.read_bytes() == whole + b'{"step": 3}\n'
