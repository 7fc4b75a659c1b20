"""A file is whole or not there, and what is said to be on disk was forced to it, in the right order."""

import os
import stat

import pytest

from dpfed.files.atomic import create_file, make_folder, new_folder, write_atomically
from tests.files.disk import full_disk, recorded


@pytest.mark.parametrize("content", ["new", b"new", lambda draft: draft.write_text("new")], ids=["text", "bytes", "function"])
def test_content_then_name_are_on_disk_before_the_return(tmp_path, monkeypatch, content):
    path = tmp_path / "file"
    path.write_text("old")
    events = recorded(monkeypatch)
    write_atomically(path, content)
    draft = "file" if callable(content) else ".file.partial"
    assert events == [("sync", draft, b"new"), ("name", "file"), ("sync", tmp_path.name, None)]
    assert path.read_text() == "new" and [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, failing):
    path = tmp_path / "file"
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old" and [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("room", [0, 3])
def test_on_a_full_disk_the_old_file_stays_and_is_named(tmp_path, monkeypatch, room):
    path = tmp_path / "file"
    path.write_text("old")
    for write, content in ((write_atomically, b"longer"), (create_file, memoryview(b"longer"))):
        place = path if write is write_atomically else tmp_path / "new"
        with full_disk(monkeypatch, room), pytest.raises(OSError, match="No space left") as error:
            write(place, content)
        assert str(tmp_path) in error.value.filename
    assert path.read_text() == "old"


def test_what_a_killed_process_left_is_replaced(tmp_path):
    (tmp_path / ".file.partial").write_text("longer than what comes")
    (tmp_path / ".file.partial").chmod(0o644)
    write_atomically(tmp_path / "file", "secret", mode=0o600)
    assert (tmp_path / "file").read_text() == "secret" and mode_of(tmp_path / "file") == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_what_a_killed_library_left_goes_with_the_next_write(tmp_path):
    class Killed(BaseException):
        """Nothing that follows is carried out."""

    def die_on_the_way(draft):
        (draft.parent / ".tmpA1b2").write_text("half of it")
        raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr("dpfed.files.atomic._remove", lambda _: None)
        write_atomically(tmp_path / "file", die_on_the_way)
    assert [path.name for path in tmp_path.iterdir()] == [".file.partial"]
    write_atomically(tmp_path / "file", lambda draft: draft.write_text("new"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "new"


def test_what_a_library_leaves_beside_its_file_goes(tmp_path):
    def write(draft):
        (draft.parent / "draft.lock").write_text("")
        draft.write_text("new")

    write_atomically(tmp_path / "file", write)
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "new"


def write_by_a_function(path, content, mode):
    write_atomically(path, lambda draft: draft.write_bytes(content), mode)


@pytest.mark.parametrize("write", [write_atomically, write_by_a_function, create_file])
@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_permissions_are_those_that_are_asked_for_less_the_umask(tmp_path, write, mode):
    before = os.umask(0o027)
    try:
        write(tmp_path / "file", b"x", mode)
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "file") == mode & ~0o027


def test_a_new_file_replaces_nothing_and_is_on_disk(tmp_path, monkeypatch):
    events = recorded(monkeypatch)
    create_file(tmp_path / "key", b"first")
    assert events == [("sync", "key", b"first")]
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "key", b"second")
    assert (tmp_path / "key").read_bytes() == b"first"


def test_a_new_folder_has_its_name_when_all_in_it_is_on_disk(tmp_path, monkeypatch):
    events = recorded(monkeypatch)
    with new_folder(tmp_path / "run", mode=0o700) as draft:
        (draft / "inner").mkdir()
        (draft / "inner" / "a").write_text("a")
        (draft / "b").write_text("b")
        assert not (tmp_path / "run").exists() and not events
    named = events.index(("name", "run"))
    assert {("sync", "a", b"a"), ("sync", "b", b"b"), ("sync", "inner", None), ("sync", draft.name, None)} == set(
        events[:named]
    )
    assert events[named + 1 :] == [("sync", tmp_path.name, None)]
    assert (tmp_path / "run" / "inner" / "a").read_text() == "a" and mode_of(tmp_path / "run") == 0o700


def test_a_new_folder_replaces_an_empty_one_alone(tmp_path):
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / "empty") as draft:
        (draft / "b").write_text("b")
    with pytest.raises(OSError, match="not empty"), new_folder(tmp_path / "empty"):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["empty", "b"]


def test_a_folder_s_name_is_forced_to_the_disk_once(tmp_path, monkeypatch):
    events = recorded(monkeypatch)
    make_folder(tmp_path / "releases")
    make_folder(tmp_path / "releases")
    assert events == [("sync", tmp_path.name, None)]


@pytest.mark.parametrize(("number", "passes"), [(22, True), (95, True), (5, False)], ids=["EINVAL", "ENOTSUP", "EIO"])
def test_storage_without_folder_sync_is_used_a_broken_disk_not(tmp_path, monkeypatch, number, passes):
    sync = os.fsync

    def only_files(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    if passes:
        write_atomically(tmp_path / "file", "new")
    else:
        with pytest.raises(OSError, match="Input/output"):
            write_atomically(tmp_path / "file", "new")


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)
