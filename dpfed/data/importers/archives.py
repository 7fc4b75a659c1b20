"""Reads the files of a tar archive, from front to back.

The archive may be compressed. Several archives may have been joined into one file: all of them are read.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Self

from dpfed.data.importers.listing import archive_ending

_OCTAL = re.compile(rb"[0-7]+").fullmatch
_BUFFER = 1 << 18  # bytes that are read at a time: most members are smaller
_MOST_BYTES = 1 << 30  # of one member; a larger one would not be decoded anyway
_BLOCK = tarfile.BLOCKSIZE
_UNPACKED: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}


class DamagedArchive(Exception):
    """The error for an archive that is damaged or incomplete.

    Args:
        reason: Reason, in a few words.
        at: Number of bytes of the archive's unpacked content that are known to be undamaged, from the start.
    """

    def __init__(self, reason: str, at: int) -> None:
        super().__init__(reason)
        self.at = at


class _Header(tarfile.TarInfo):
    """The header of a member of an archive.

    For plain files, only the fields that dpfed needs are read, because reading headers takes most of the time of the
    first pass over the archives.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parses the bytes of a header; see `tarfile.TarInfo.frombuf`."""
        said, size = buf[148:156].rstrip(b"\0 "), buf[124:136].rstrip(b"\0 ")
        name, prefix = buf[:100].partition(b"\0")[0], buf[345:500].partition(b"\0")[0]
        plain = len(buf) == _BLOCK and buf[156:157] == tarfile.REGTYPE and not name.endswith(b"/")
        if not plain or not _OCTAL(said) or not _OCTAL(size) or int(said, 8) != sum(buf) - sum(buf[148:156]) + 8 * 32:
            return super().frombuf(buf, encoding, errors)
        header = cls((prefix + b"/" + name if prefix else name).decode(encoding, errors))
        header.size, header.type = int(size, 8), tarfile.REGTYPE
        return header


class _Content(io.RawIOBase):
    """The unpacked content of an archive. A compressed archive is read forwards only.

    Attributes:
        last: Bytes that were read last.
    """

    def __init__(self, file: IO[bytes], seekable: bool) -> None:
        self._file = file
        self._seekable = seekable
        self._at = 0
        self._ahead = b""
        self.last = b""

    def read(self, size: int = -1) -> bytes:
        """Reads at most `size` bytes (-1: all that are left). Bytes that were put back are read first."""
        first, self._ahead = (self._ahead, b"") if size < 0 else (self._ahead[:size], self._ahead[size:])
        missing = size - len(first) if size >= 0 else -1
        self.last = first + self._file.read(missing) if missing else first
        self._at += len(self.last)
        return self.last

    def put_back(self) -> None:
        """Puts back the bytes that were read last, so that they are read again."""
        self._ahead, self._at = self.last, self._at - len(self.last)

    def tell(self) -> int:
        """Returns the present position in the content, in bytes from the start."""
        return self._at

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        """Moves to a position, in bytes from the start, and returns the position that was reached.

        If compressed content ends before the wanted position, its end is reached.

        Raises:
            tarfile.ReadError: If the content is compressed, and the wanted position lies before the present one.
        """
        if place == self._at:
            return place
        if self._seekable:
            self._ahead, self._at = b"", self._file.seek(place)
            return place
        if place < self._at:
            raise tarfile.ReadError("its members are not in order")
        while place > self._at and self.read(min(place - self._at, _BUFFER)):
            pass
        return self._at


def name_of(file: Path) -> str:
    """Returns the name of an archive without its ending, such as ``.tar.gz``."""
    return file.name[: len(file.name) - len(archive_ending(file))]


def members(file: Path, wanted: Callable[[tarfile.TarInfo], bool]) -> Iterator[tuple[tarfile.TarInfo, bytes | str | None]]:
    """Yields the members of an archive, with their content.

    Reading continues after an end-of-archive mark, because another archive may follow in the same file.

    Args:
        file: Path of the archive.
        wanted: Function that says whether a member's content is read.

    Yields:
        A member and its content. The content is bytes, or a string that says why the content is not read, or ``None`` if the
        member is not a regular file or its content is not wanted.

    Raises:
        DamagedArchive: If the archive is cut off, is damaged or cannot be read.
    """
    at = 0
    try:
        with file.open("rb", buffering=_BUFFER) as plain:
            first_bytes = plain.read(max(map(len, _UNPACKED)))  # a download's name may be wrong
            plain.seek(0)
            unpack = next((unpack for magic, unpack in _UNPACKED.items() if first_bytes.startswith(magic)), None)
            content = _Content(unpack(plain) if unpack else plain, seekable=unpack is None)
            while True:
                archive = tarfile.TarFile(fileobj=content, tarinfo=_Header)
                first = archive.firstmember  # type: ignore[attr-defined]  # in an empty archive, next() would read backwards
                member = archive.next() if first else None
                while member is not None:
                    archive.members.clear()  # type: ignore[attr-defined]  # public, untyped; it would remember every member
                    data: bytes | str | None = None
                    if member.isreg() and wanted(member):
                        data = "larger than 1 GiB" if member.size > _MOST_BYTES else _content(content, archive, member)
                    yield member, data
                    at = member.offset_data + member.size
                    member = archive.next()
                # tarfile takes a header that it cannot read for the end; the real end is a block of zeros.
                if content.last != bytes(_BLOCK):
                    raise DamagedArchive("is cut off or damaged", archive.offset)
                while content.last and not any(content.last):
                    content.read(_BLOCK)
                if not content.last:
                    return
                content.put_back()
    except (
        tarfile.TarError,
        OSError,
        EOFError,
        zlib.error,
        lzma.LZMAError,
        ValueError,
        RecursionError,
        OverflowError,
    ) as error:
        raise DamagedArchive(f"cannot be read ({error})", at) from error


def _content(source: _Content, archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """Reads the bytes of a member of an archive.

    Raises:
        tarfile.ReadError: If the archive ends before the member does.
    """
    if member.type != tarfile.REGTYPE:  # a sparse file, say
        opened = archive.extractfile(member)
        return b"" if opened is None else opened.read()
    source.seek(member.offset_data)
    content = source.read(member.size)
    if len(content) < member.size:
        raise tarfile.ReadError("unexpected end of data")
    return content
