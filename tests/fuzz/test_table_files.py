"""CSV and TSV files: their rows name any file, hold any text, and are any bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.fuzz.damage import damaged
from tests.fuzz.data_root import CELLS, COLUMNS, NAMES, bounded, imported
from tests.fuzz.profiles import Effort, efforts


@efforts
@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_tables(effort: Effort, world: Path, suffix: str) -> None:
    table = world / "root" / f"table{suffix}"
    os.mkfifo(world / "root" / "pipe.png")
    (world / "root" / "link.png").symlink_to(world / "secret.png")
    (world / "root" / "linked").symlink_to(world)

    def check(header: list[str], rows: list[list[str]], delimiter: str, skip: bool, size: int | None) -> None:
        lines = [delimiter.join(cells).replace("OUTSIDE", str(world)) for cells in [header, *rows]]
        table.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
        imported(world, table, "table" if skip else None, skip_broken=skip, size=size)

    header = st.one_of(st.just(["filepath", "title"]), st.lists(COLUMNS, max_size=5))
    rows = st.lists(st.tuples(NAMES, CELLS, CELLS, CELLS).map(list), max_size=4)
    delimiter = st.sampled_from([",", "\t", ";", "\t", ","])
    bounded(effort, 75, check, header, rows, delimiter, st.booleans(), st.sampled_from([None, 2]))


@efforts
def test_tables_of_any_bytes(effort: Effort, world: Path) -> None:
    whole = b'\xef\xbb\xbffilepath,title,split,label,unit\na.png,"a, dog",train,dog,p1\nsub/c.png,"two\nlines",val,cat,p2\n'
    encodings = [whole.decode("utf-8-sig").encode(name) for name in ("utf-8", "utf-16", "utf-32", "cp037")]

    def check(content: bytes, skip: bool) -> None:
        (world / "root" / "table.csv").write_bytes(content)
        imported(world, world / "root" / "table.csv", skip_broken=skip)

    strategy = st.one_of(damaged(whole), st.sampled_from(encodings), st.binary(max_size=60))
    bounded(effort, 75, check, strategy, st.booleans())
