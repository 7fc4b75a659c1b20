"""Record stores on shared storage: each machine copies one to its own disk, once.

The address is any URL that fsspec knows: ``s3://``, ``gs://``, ``file://``, ... A store never changes once it is written, so a
copy is named after the address, the header, and what the storage says of the header, such as its time of change: another store
at the same address gets another copy.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import fsspec

from dpfed.data.store.layout import HEADER, Layout
from dpfed.errors import UserError, nearest
from dpfed.files.atomic import cannot_write, write_atomically
from dpfed.files.locking import file_lock


def fetch_store(url: str, stores: str | Path, progress: Callable[[int, int | None], None] | None = None) -> Path:
    """Copies a store from elsewhere to this machine; what is there already is kept.

    A file gets its name when it is complete and has the size that the header says. Several processes may fetch at once.

    Args:
        url: address of the store's directory.
        stores: folder on this machine's disk for the copy.
        progress: called with (files copied so far, how many there are to copy) when there is anything to copy.

    Returns:
        The copy, for `RecordStore.open`.

    Raises:
        UserError: when the store cannot be reached or read, is incomplete, or cannot be written here.
    """
    storage = _Storage(url)
    header = storage.read(HEADER)
    layout = Layout.parse(header, url)
    name = hashlib.blake2b(b"\0".join([url.encode(), storage.state(HEADER).encode(), header]), digest_size=6).hexdigest()
    copy = Path(stores).absolute() / f"copy-{name}"
    missing = [name for name in layout.files if not _is_complete(copy, name, layout)]
    try:
        with _alone(copy):
            for done, name in enumerate(missing, 1):
                _fetch(storage, layout, name, copy)
                if progress is not None:
                    progress(done, len(missing))
            write_atomically(copy / HEADER, header)
    except OSError as error:
        raise cannot_write(copy, error) from error
    return copy


class _Storage:
    """A directory that fsspec reads; every failure becomes an error that names the address."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        if urlsplit(url).password is not None:
            raise UserError(
                "data.path holds a password, and it would be written into the run's config.toml: take it out, and give it "
                "to this machine in the way that fsspec documents for that kind of storage."
            )
        scheme = re.split(r"::|://", url)[0]
        if scheme not in fsspec.available_protocols():
            known = nearest(scheme, fsspec.available_protocols())
            raise UserError(f"data.path: {scheme}:// is no kind of storage that fsspec knows; {known}")
        with self._reading():
            self._files, self._root = fsspec.core.url_to_fs(self._url)

    def read(self, name: str) -> bytes:
        with self._reading():
            return self._files.cat_file(self._file(name))

    def state(self, name: str) -> str:
        """What changes when the file is replaced."""
        with self._reading():
            return self._files.ukey(f"{self._root}/{name}")

    def copy(self, name: str, file: Path) -> None:
        with self._reading():
            self._files.get_file(self._file(name), str(file))

    def _file(self, name: str) -> str:
        """The path of a file; nothing else is opened: a pipe would wait for ever."""
        path = f"{self._root}/{name}"
        if self._files.info(path)["type"] != "file":
            raise FileNotFoundError(f"{name} is not a file")
        return path

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except ImportError as error:  # fsspec says which package to install
            raise UserError(f"the record store {self._url} cannot be read with what is installed here: {error}.") from error
        except Exception as error:  # every kind of storage raises its own
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UserError(
                f"the record store {self._url} cannot be read ({reason}): check the address, this machine's credentials for "
                "it, and the space on this machine's disk."
            ) from error


def _is_complete(copy: Path, name: str, layout: Layout) -> bool:
    file = copy / name
    return file.is_file() and file.stat().st_size == layout.header["files"][name]


def _fetch(storage: _Storage, layout: Layout, name: str, copy: Path) -> None:
    if _is_complete(copy, name, layout):
        return  # another process was faster

    def get(file: Path) -> None:
        storage.copy(name, file)
        actual, expected = file.stat().st_size, layout.header["files"][name]
        if actual != expected:
            raise UserError(
                f"the record store {layout.place} is incomplete: {name} has {actual:,} bytes instead of {expected:,}; wait "
                "until it is uploaded, or upload it again."
            )

    write_atomically(copy / name, get)


def _alone(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Makes a folder; who enters waits until no other process writes to it."""
    folder.mkdir(parents=True, exist_ok=True)
    return file_lock(folder / ".lock", f"another process writes to {folder}.", wait=math.inf)
