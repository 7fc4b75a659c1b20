"""Tables on pages are those of the committed result files, and nothing else has some."""

import re
from pathlib import Path

import pytest

from benchmarks.readme import TABLES, fill

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", TABLES)
def test_a_page_has_the_figures_of_the_result_files(page):
    """`python -m benchmarks.readme` writes them again."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert set(re.findall(r"^<!-- (\w[\w-]*) -->$", text, re.MULTILINE)) == TABLES[page].keys()
    assert fill(text, {part: table() for part, table in TABLES[page].items()}) == text


def test_generated_tables_are_on_two_pages_of_the_guides():
    pages = {path.name for path in (ROOT / "docs").glob("*.md") if "<!-- /" in path.read_text(encoding="utf-8")}
    assert pages == {"results.md", "two-arrays.md"}
