"""WebDataset archives whose members lead elsewhere, are no files, or are cut off."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.fuzz.damage import damaged
from tests.fuzz.data_root import NAMES, PNG, bounded, imported
from tests.fuzz.profiles import Effort, efforts

KINDS = st.sampled_from(
    [tarfile.REGTYPE] * 6 + [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
TEXTS = [b"a dog", b"[[", b"[" * 20_000, b"\xff", b"", b"3", b"9" * 5000]
TEXTS += [b'{"caption": "a"}', b'{"caption": [1, null, "x"], "pid": NaN}']
MEMBERS = st.tuples(
    st.one_of(NAMES, st.sampled_from(["0.png", "0.txt", "0.json", "0.cls", "1.png", "1.jpg", "1.json", "d/2.png", "d/2.cls"])),
    KINDS,
    st.one_of(st.just(PNG), st.sampled_from(TEXTS)),
)


def archive(members: list[tuple[str, bytes, bytes]], format: int, world: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for name, kind, content in members:
            member = tarfile.TarInfo(name.replace("\0", "").replace("OUTSIDE", str(world)))
            member.type, member.linkname = kind, str(world / "secret.png")
            member.size = len(content) if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.long
@efforts
def test_archives(effort: Effort, world: Path) -> None:
    path = world / "root" / "train.tar"
    for image in ("a.png", "b.PNG", "sub/c.png"):
        (world / "root" / image).unlink()

    def check(drawn: tuple[bytes, bool]) -> None:
        content, skip = drawn
        path.write_bytes(content)
        imported(world, path if skip else world / "root", "webdataset", skip_broken=skip)

    formats = st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])

    def made(drawn: tuple[list[tuple[str, bytes, bytes]], int, bool]) -> st.SearchStrategy:
        members, format, breaks = drawn
        try:
            content = archive(members, format, world)
        except (ValueError, UnicodeError):  # a name that this format cannot hold
            return st.just(b"")
        return damaged(content) if breaks else st.just(content)

    contents = st.tuples(st.lists(MEMBERS, max_size=6), formats, st.booleans()).flatmap(made)
    bounded(effort, 150, check, st.tuples(contents, st.booleans()))
