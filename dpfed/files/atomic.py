"""Files and folders that are there whole or not at all, also after a crash or a power cut.

The order is always the same: write under another name, force the content to the disk, give the name, force the name to the
disk. Privacy hangs on it: a noisy sum must be kept before it is charged, and charged before it is used.

Also here: a store's directory appears under its name when it is complete, or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from io import RawIOBase
from pathlib import Path

from dpfed.errors import UserError
from dpfed.files.locking import file_lock

Content = bytes | memoryview | str
DRAFT = ".partial"  # ends the name of what is not whole yet

_FROM_RUST = re.compile(r"\(os error (\d+)\)")  # in what safetensors says
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)  # what file systems without links to files answer
_NO_SYNC_OF_FOLDERS = (errno.EINVAL, errno.ENOTSUP)  # what some network storage answers; it has no more to offer


def write_atomically(path: Path, content: Content | Callable[[Path], object], mode: int = 0o666) -> None:
    """Writes a file in place of an older one. When this returns, it is on disk under its name.

    Whoever reads the file meanwhile, and whoever reads it after a crash, finds the old content or the new one.

    Args:
        path: of the file. Two processes must not write it at once.
        content: bytes; text, as UTF-8; or what writes a file at a path that it is given. Use it for libraries that tell why
            they cannot write: numpy's ``tofile`` does not.
        mode: permissions, of which the umask takes its share. The file has them before anything is in it.

    Raises:
        OSError: if it cannot be written; the old file is still there.
    """
    draft = path.with_name(f".{path.name}{DRAFT}")
    _remove(draft)  # left behind by a process that was killed
    try:
        if callable(content):
            draft.mkdir(0o700)  # libraries write beside a file, too, what they leave behind when they are killed
            file = draft / path.name
            os.close(os.open(file, _NEW, mode))
            _let_write(content, file)
            _sync(file)
            os.replace(file, path)
            draft.rmdir()
        else:
            create_file(draft, content, mode)
            os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            _remove(draft)
        raise
    sync_folder(path.parent)


def create_file(path: Path, content: Content, mode: int = 0o666) -> None:
    """Writes a file that must not be there. When this returns, its content is on disk.

    A crash can leave a part of it: for files in a `new_folder`, and for those that nobody can do without or replace.

    Args:
        path: of the file.
        content: bytes, or text, as UTF-8.
        mode: see `write_atomically`.

    Raises:
        FileExistsError: if there is one.
        OSError: if it cannot be written; it names the file.
    """
    with open(os.open(path, _NEW, mode), "wb", buffering=0) as file, naming(path):
        write_whole(file, content.encode() if isinstance(content, str) else content)


def write_whole(file: RawIOBase, content: bytes | memoryview) -> None:
    """Writes content to a file that has no buffer: that would write the rest when it is closed. Then it is on disk."""
    left = memoryview(content)
    while left:
        left = left[file.write(left) or 0 :]
    os.fsync(file.fileno())


def create_atomically(path: Path, content: Content, mode: int = 0o666) -> None:
    """Writes a file that must not be there, whole or not at all. It never replaces one that another process writes meanwhile.

    Args:
        path: of the file.
        content: see `create_file`.
        mode: see `write_atomically`.

    Raises:
        FileExistsError: if there is one.
        OSError: if it cannot be written.
    """
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}{DRAFT}")
    try:
        create_file(draft, content, mode)
        with naming(path):
            try:
                os.link(draft, path)  # unlike a rename, it replaces nothing
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                create_file(path, content, mode)
    finally:
        with contextlib.suppress(OSError):
            _remove(draft)
    sync_folder(path.parent)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Has what the system refuses name the file, as it does by itself only where a file is opened."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _let_write(content: Callable[[Path], object], draft: Path) -> None:
    """Has a library write a file; what the system refuses it is an `OSError`, whatever the library makes of that."""
    try:
        with naming(draft):
            content(draft)
    except Exception as error:
        number = _FROM_RUST.search(str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(draft)) from error


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Makes a folder in one that is there, unless it is there as well, and forces its name to the disk."""
    if not path.is_dir():
        path.mkdir(mode, exist_ok=True)
        sync_folder(path.parent)


@contextlib.contextmanager
def new_folder(path: Path, mode: int = 0o777) -> Iterator[Path]:
    """A folder that gets its name at the end of the ``with`` block, and is removed when the block fails.

    Args:
        path: where nothing is, or an empty folder.
        mode: permissions of the folder, of which the umask takes its share.

    Raises:
        OSError: if it cannot be made.
    """
    draft = draft_of(path)
    try:
        draft.mkdir(mode, parents=True)
        yield draft
        name_folder(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def draft_of(path: Path) -> Path:
    """Where a folder is made that will be called `path`: beside it, so that one step gives it the name."""
    return path.parent / f".{path.name}{DRAFT}-{secrets.token_hex(4)}"


def name_folder(draft: Path, path: Path) -> None:
    """Forces a folder with all that is in it to the disk, and then gives it its name.

    Raises:
        OSError: if something else has that name.
    """
    for folder, _, files in os.walk(draft):
        for name in files:
            _sync(Path(folder, name))
        sync_folder(Path(folder))
    os.rename(draft, path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Forces the names in a folder to the disk."""
    try:
        _sync(path)
    except OSError as error:
        if error.errno not in _NO_SYNC_OF_FOLDERS:
            raise


def remove_drafts(folder: Path) -> None:
    """Removes what `write_atomically` left in a folder when it was killed; nobody may write there meanwhile."""
    for draft in folder.glob(f".*{DRAFT}"):
        _remove(draft)


def _remove(draft: Path) -> None:
    if draft.is_dir():
        shutil.rmtree(draft)
    else:
        draft.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_existing(path: Path) -> None:
    """Refuses a destination where something is already.

    Raises:
        UserError: when something is there.
    """
    if os.path.lexists(path):
        raise UserError(f"{path} exists already; choose another destination or delete it first. [file-exists]")


@contextlib.contextmanager
def claimed(path: Path, wait: float = 0.0, say: Callable[[str], None] | None = None) -> Iterator[None]:
    """Keeps the place of a new store for this process, and removes what killed ones left of stores of this name.

    Finds out whether a store could be made, before anything is read that takes long. When the block ends, nothing is left
    but what it made.

    Args:
        path: where nothing is.
        wait: seconds to wait for another process that writes there; infinity: for as long as it takes.
        say: told what was removed.

    Raises:
        UserError: when `path` exists, another process writes there, or nothing can be written there.
        OSError: when what a killed process left cannot be removed.
    """
    refuse_existing(path)
    missing = [folder for folder in path.parents if not os.path.lexists(folder)]
    lock = path.with_name(f".{path.name}.lock")
    taken = f"another process is writing {path}: wait until it has ended, or choose another destination."
    with contextlib.ExitStack() as stack:
        for folder in reversed(missing):
            stack.callback(_remove_empty, folder)
        try:
            for folder in reversed(missing):
                folder.mkdir(exist_ok=True)
            stack.enter_context(file_lock(lock, taken, wait))
        except OSError as error:
            raise cannot_write(path, error) from error
        stack.callback(lock.unlink, missing_ok=True)  # while it is held: whoever waits for it takes a new one
        left = [draft for draft in path.parent.glob(f".{glob.escape(path.name)}{DRAFT}-{'[0-9a-f]' * 8}") if draft.is_dir()]
        for draft in left:
            shutil.rmtree(draft)
        if left and say is not None:
            say(f"removed what killed processes had left beside {path}: {', '.join(draft.name for draft in left)}.")
        start_directory(path).rmdir()
        yield


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # it holds something: it is a way up, or somebody else's by now
        folder.rmdir()


def start_directory(path: Path) -> Path:
    """Makes a hidden directory beside `path`, in which a store is written before it gets its name; the caller removes it.

    Raises:
        UserError: when `path` exists or nothing can be written there.
    """
    refuse_existing(path)
    partial = draft_of(path)
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise cannot_write(path, error) from error
    return partial


def name_directory(partial: Path, path: Path) -> None:
    """Gives a complete store its name.

    Raises:
        UserError: when somebody else took the name meanwhile.
    """
    refuse_existing(path)
    name_folder(partial, path)


@contextlib.contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """A hidden directory that becomes `path` at the end of the ``with`` block, and is removed when the block fails.

    Raises:
        UserError: when `path` exists or nothing can be written there.
    """
    partial = start_directory(path)
    try:
        yield partial
        name_directory(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def cannot_write(path: Path, error: OSError) -> UserError:
    """The error of a store that the disk or its permissions do not let be written."""
    return UserError(f"cannot write the record store {path}: {error.strerror or error}. [store-unwritable]")
