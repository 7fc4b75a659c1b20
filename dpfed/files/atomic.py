"""Creates files and folders atomically: after a crash or a power cut, each exists completely or not at all.

A file or folder gets a temporary name first. Its content is forced to the disk (fsync), then it is renamed, then the new name
is forced to the disk. Three functions differ: `create_file` writes under the final name, so a crash can leave a part of a
file; `create_atomically` makes a hard link in place of the renaming; `make_folder` makes an empty folder under its final name.

Privacy depends on this: what a step released, or the training state that follows from it, must be on disk before the step is
charged, and the charge must be on disk before anything that depends on the release leaves the process.

The directory of a record store is made in the same way: it gets its name only when it is complete.
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
DRAFT = ".partial"  # suffix of files and folders that are not complete yet

_FROM_RUST = re.compile(r"\(os error (\d+)\)")  # in messages of safetensors
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)  # errors of file systems without hard links
_NO_SYNC_OF_FOLDERS = (errno.EINVAL, errno.ENOTSUP)  # errors of some network storage, which cannot sync a folder


def write_atomically(path: Path, content: Content | Callable[[Path], object], mode: int = 0o666) -> None:
    """Writes a file, and replaces an older one. When the function returns, the file is on disk under its name.

    A reader finds the old content or the new one, never a mixture, both during the write and after a crash.

    Args:
        path: Path of the file. Two processes must not write it at once.
        content: Bytes; text, written as UTF-8; or a function that writes a file at the path it is given. Use a function only
            for libraries that report why they cannot write: numpy's ``tofile`` does not.
        mode: Permissions, reduced by the umask. The file has them before it has any content.

    Raises:
        OSError: If the file cannot be written. The old file is still there, unless the error came after the new file had
            replaced it.
    """
    draft = path.with_name(f".{path.name}{DRAFT}")
    _remove(draft)  # left behind by a process that was killed
    try:
        if callable(content):
            draft.mkdir(0o700)  # some libraries write temporary files beside the file, and leave them when killed
            file = draft / path.name
            os.close(os.open(file, _NEW, mode))
            _let_write(content, file)
            _sync(file)
            os.replace(file, path)
            with contextlib.suppress(OSError):  # the new file is in place; `remove_drafts` removes what is left
                _remove(draft)  # with files that a library left beside the file
        else:
            create_file(draft, content, mode)
            os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            _remove(draft)
        raise
    sync_folder(path.parent)


def create_file(path: Path, content: Content, mode: int = 0o666) -> None:
    """Writes a file that must not exist yet. When the function returns, its content is on disk.

    A crash can leave a part of the file. So use the function for files in a `new_folder`, for drafts, and for files that can
    be written again after a crash.

    Args:
        path: Path of the file.
        content: Bytes, or text, written as UTF-8.
        mode: Permissions, see `write_atomically`.

    Raises:
        FileExistsError: If the file exists.
        OSError: If the file cannot be written; the error names the file.
    """
    with open(os.open(path, _NEW, mode), "wb", buffering=0) as file, naming(path):
        write_whole(file, content.encode() if isinstance(content, str) else content)


def write_whole(file: RawIOBase, content: bytes | memoryview) -> None:
    """Writes all content to an unbuffered file, and forces it to the disk. (A buffer would write its rest only at closing.)"""
    left = memoryview(content)
    while left:
        left = left[file.write(left) or 0 :]
    os.fsync(file.fileno())


def create_atomically(path: Path, content: Content, mode: int = 0o666) -> None:
    """Writes a file that must not exist yet, completely or not at all, and never replaces another process's file.

    On a file system without hard links, a crash can leave a part of the file.

    Args:
        path: Path of the file.
        content: Bytes, or text, written as UTF-8.
        mode: Permissions, see `write_atomically`.

    Raises:
        FileExistsError: If the file exists.
        OSError: If the file cannot be written.
    """
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}{DRAFT}")
    try:
        create_file(draft, content, mode)
        with naming(path):
            try:
                os.link(draft, path)  # unlike a rename, a link replaces no file
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
    """Adds the file's name to an `OSError` in the block, because the system's errors name a file only if opening it fails."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _let_write(content: Callable[[Path], object], draft: Path) -> None:
    """Calls a library that writes a file, and turns the library's own exceptions about failed writing into an `OSError`."""
    try:
        with naming(draft):
            content(draft)
    except Exception as error:
        number = _FROM_RUST.search(str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(draft)) from error


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Makes a folder if it does not exist, and forces the new entry in its parent folder to the disk.

    Args:
        path: Path of the folder. Its parent folder must exist.
        mode: Permissions of a new folder, reduced by the umask.

    Raises:
        OSError: If the folder cannot be made, for example because its parent folder is missing or a file has its name.
    """
    if not path.is_dir():
        path.mkdir(mode, exist_ok=True)
        sync_folder(path.parent)


@contextlib.contextmanager
def new_folder(path: Path, mode: int = 0o777) -> Iterator[Path]:
    """Yields a folder that gets its name at the end of the ``with`` block, and is removed when the block fails.

    Args:
        path: Path of the folder. Nothing but an empty folder may exist there.
        mode: Permissions of the folder, reduced by the umask.

    Raises:
        OSError: If the folder cannot be made, or something other than an empty folder has its name at the end.
    """
    draft = draft_of(path)
    try:
        draft.mkdir(mode, parents=True)
        yield draft
        name_folder(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def draft_of(path: Path) -> Path:
    """Returns a temporary path beside `path` for a new folder, so that a single rename can later give the folder its name."""
    return path.parent / f".{path.name}{DRAFT}-{secrets.token_hex(4)}"


def name_folder(draft: Path, path: Path) -> None:
    """Forces the folder `draft` with all its contents to the disk, and then renames it to `path`.

    Raises:
        OSError: If something other than an empty folder is at `path`, or the disk reports an error.
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
    """Removes temporary files that killed calls of `write_atomically` or `create_atomically` left in a folder.

    No process may write in the folder at the same time.

    Raises:
        OSError: If such a file cannot be removed.
    """
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
    """Refuses a destination that exists already.

    Raises:
        UserError: If something exists at the path.
    """
    if os.path.lexists(path):
        raise UserError(f"{path} exists already; delete it first, or choose another destination. [file-exists]")


@contextlib.contextmanager
def claimed(path: Path, wait: float = 0.0, say: Callable[[str], None] | None = None) -> Iterator[None]:
    """Reserves the path of a new store for this process, by a lock file beside it.

    The function also removes the store's drafts (incomplete folders) that killed processes left, and checks, before a long
    import begins, whether a store can be written there. When the block ends, the lock file is removed, and so are the parent
    folders that were made for the store and are still empty.

    Args:
        path: Path of the new store. Nothing may exist there.
        wait: Seconds to wait for another process that writes there; infinity: without a limit.
        say: Function that is called with a sentence about the drafts that were removed; ``None``: nobody is told.

    Raises:
        UserError: If `path` exists, another process writes there, or nothing can be written there.
        OSError: If a draft that a killed process left cannot be removed.
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
        stack.callback(lock.unlink, missing_ok=True)  # while the lock is held: a waiting process makes a new file
        left = [draft for draft in path.parent.glob(f".{glob.escape(path.name)}{DRAFT}-{'[0-9a-f]' * 8}") if draft.is_dir()]
        for draft in left:
            shutil.rmtree(draft)
        if left and say is not None:
            say(f"removed what killed processes had left beside {path}: {', '.join(draft.name for draft in left)}.")
        start_directory(path).rmdir()
        yield


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not empty: the store is in it, or another process uses it by now
        folder.rmdir()


def start_directory(path: Path) -> Path:
    """Makes a hidden directory beside `path`, in which a store is written at first. The caller renames or removes it.

    Raises:
        UserError: If `path` exists, or nothing can be written there.
    """
    refuse_existing(path)
    partial = draft_of(path)
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise cannot_write(path, error) from error
    return partial


def name_directory(partial: Path, path: Path) -> None:
    """Renames the directory `partial`, which holds a complete store, to `path`.

    Raises:
        UserError: If something else exists at `path` by now.
        OSError: If the disk reports an error.
    """
    refuse_existing(path)
    name_folder(partial, path)


@contextlib.contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """Yields a hidden directory that becomes `path` at the end of the ``with`` block, and is removed when the block fails.

    Raises:
        UserError: If `path` exists, or nothing can be written there.
        OSError: If the disk reports an error at the end.
    """
    partial = start_directory(path)
    try:
        yield partial
        name_directory(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def cannot_write(path: Path, error: OSError) -> UserError:
    """Returns the error for a store that cannot be written, because of the disk or its permissions."""
    return UserError(
        f"cannot write the record store {path}: {error.strerror or error}. Remove the cause, or choose another "
        "destination. [store-unwritable]"
    )
