"""The page on two arrays does what it says: its code is run as it stands, from top to bottom, on small files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.arrays.two_views import two_views

PAGE = Path(__file__).parents[1] / "docs" / "two-arrays.md"


@pytest.mark.long
def test_the_code_of_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPFED_BUDGETS", str(tmp_path / "budgets"))
    for name, side in zip(("images", "texts"), two_views(2500, (40, 24)), strict=True):
        np.save(f"{name}.npy", side)
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(side.reshape(-1)), side.shape[1])
        pq.write_table(pa.table({"name": [str(number) for number in range(2500)], "features": vectors}), f"{name}.parquet")
    for name, side in zip(("public_images", "public_texts"), two_views(300, (40, 24), seed=8), strict=True):
        np.save(f"{name}.npy", side)
    names: dict = {"__name__": "__main__"}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(block, names)  # noqa: S102 our own page
    shown = capsys.readouterr().out
    assert "# Privacy card of PrivateCCA" in shown and "\n4 0." in shown and "\nNone 0." in shown
    np.testing.assert_allclose(names["embedding"], names["again"].transform(names["images"]), atol=1e-5)
    assert names["w"].shape == (500, 40) and names["z"].shape == (2500, 40)
