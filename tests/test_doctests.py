"""What docstrings show is what happens."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHOWING = sorted(path for path in (ROOT / "dpfed").rglob("*.py") if ">>>" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", SHOWING, ids=lambda path: path.stem)
def test_examples_in_docstrings_give_what_they_say(path):
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    # Names of the module itself and of the package are known, as in a session that imported them.
    outcome = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert outcome.attempted and not outcome.failed


def test_there_are_examples():
    assert len(SHOWING) >= 3


@pytest.mark.parametrize("page", ["README.md", "docs/commands.md"])
def test_programs_on_a_page_are_python(page):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        compile(block, page, "exec")
