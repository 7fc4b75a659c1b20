"""A data root with things in it, beside a file that no import may read; and what holds of every import."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from dpfed.data.importers import import_records
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from tests.data.views.files_of_all_modes import colours, encoded
from tests.fuzz.profiles import Effort, answer

PNG = encoded(Image.fromarray(colours(3, 3)), "PNG")
SECRET = b"nobody gave this file to the import"
KILOBYTES = 1 << 20  # of memory that the worst input of a test may take

# Names that a file may be given: usual ones, ones that lead elsewhere, and ones that no file can have.
NAMES = st.one_of(
    st.sampled_from(["a.png", "b.PNG", "sub/c.png", "./a.png", "a.png/", "gone.png", "sub", "pipe.png", "a.txt", ".b.png"]),
    st.sampled_from("../secret.png sub/../../secret.png OUTSIDE/secret.png link.png linked/secret.png /dev/zero NUL".split()),
    st.sampled_from(["", " ", ".", "..", "/", "\0", "a\nb.png", "é.png", "\ud800.png", "x" * 300 + ".png", "-rf", "~/a.png"]),
    st.text(max_size=8),
)
CELLS = st.one_of(
    st.sampled_from(["", "train", "val", "TEST", "0", "-1", "1e400", "nan", "9" * 30, "dog", '"', "\ufeff", "a,b", "a\tb"]),
    st.text(max_size=12),
)
COLUMNS = st.sampled_from(
    ["filepath", "title", "split", "label", "unit", "image", "caption", "text", "id", "ID", "pid", "x", "", " Image Path "]
)


def imported(world: Path, source: Path, format: str | None = None, **options: object) -> object:
    """Imports a source, and checks all that holds whatever it is."""
    dest, before = world / "store", listing(world)
    result = answer(lambda: import_records(source, dest, format, **options))
    if isinstance(result, UserError):
        assert not dest.exists(), f"refused, and written: {result}"
    else:
        store = RecordStore.open(dest)
        rows = np.arange(len(store))
        assert store.images(rows, 2).shape == (len(rows), 3, 2, 2)
        assert len(set(store.ids(rows))) == len(rows) == sum(result.counts.values())
        store.captions(rows)
        assert SECRET not in (dest / "records.arrow").read_bytes(), "read a file outside of the data root"
        shutil.rmtree(dest)
    assert listing(world) == before, "something was written, changed or left behind"
    return result


def listing(world: Path) -> list[tuple[str, int, int]]:
    entries = ((path, path.lstat()) for path in sorted(world.rglob("*")))
    return [(str(path), status.st_mode, status.st_size if path.is_file() else 0) for path, status in entries]


def bounded(effort: Effort, count: int, check: Callable[..., object], *inputs: st.SearchStrategy) -> None:
    """As `Effort.tries`, in a bounded amount of memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    effort.tries(count, check, *inputs)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < KILOBYTES
