"""What is not a regular file is refused at once, whoever would have to write to it first."""

import os
import socket

import pytest

from dpfed.files.reading import open_regular, read_bytes, read_text, require_regular
from tests.fuzz.profiles import answered_in_time


def folder(path):
    path.mkdir()


def listening(path):
    socket.socket(socket.AF_UNIX).bind(str(path))


@pytest.mark.parametrize("reader", [open_regular, read_bytes, read_text, require_regular])
@pytest.mark.parametrize("make", [folder, os.mkfifo, listening, lambda path: path.symlink_to("/dev/zero")])
def test_it_is_refused_at_once(reader, make, tmp_path):
    make(tmp_path / "x")
    with answered_in_time(2), pytest.raises(OSError):
        reader(tmp_path / "x")


def test_a_file_is_read_as_it_is(tmp_path):
    (tmp_path / "x").write_bytes("\u00fc\r\nb\rc".encode())
    assert read_bytes(tmp_path / "x") == "\u00fc\r\nb\rc".encode() and read_text(tmp_path / "x") == "\u00fc\nb\nc"
    (tmp_path / "link").symlink_to(tmp_path / "x")
    require_regular(tmp_path / "link")
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "y")
