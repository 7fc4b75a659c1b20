"""The documentation site: every page has its place, links are those of the site, and the tutorials are executed."""

import ast
import html
import importlib
import json
import re
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

import dpfed

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
pytest.importorskip("mkdocs")
sys.path.insert(0, str(ROOT / "docs" / "hooks"))
import pages  # noqa: E402

from tests.docs.commands import in_words, parsed  # noqa: E402
from tests.patience import run_to_end  # noqa: E402


def nav(tree):
    for entry in tree:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from nav(value) if isinstance(value, list) else [value]


def test_every_page_has_its_place_in_the_navigation():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    shown = list(nav(site["nav"]))
    there = {path.name for path in (ROOT / "docs").glob("*.md")} | {f"tutorials/{path.name}" for path in NOTEBOOKS}
    assert set(shown) == there | set(pages.MOVED.values()) | {"reference/index.md"} and len(shown) == len(set(shown))
    assert site["strict"] and site["theme"]["font"] is False


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_begins_with_needs_time_and_notebook(path):
    lead = "".join(json.loads(path.read_text())["cells"][0]["source"])
    assert "pip install" in lead and re.search(r"\bminutes\b", lead.split("\n\n", 1)[1]) and f"({path.name})" in lead


def test_the_reference_has_every_module():
    entries = set(re.findall(r"^::: ([\w.]+)$", "\n".join(pages.reference().values()), re.MULTILINE))
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for room in pages.ROOMS
        for path in (ROOT / room).rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    }
    assert entries == modules | {"dpfed"}


def test_the_reference_begins_with_the_public_names():
    first, _, others = pages.reference()["index.md"].partition("## Every module")
    entries = re.findall(r"^- \[`dpfed\.(\w+)`\]\S+: \S", first, re.MULTILINE)
    assert sorted([*entries, "__version__"]) == dir(dpfed) and entries[0] == "Trainer"
    assert "dpfed.training" in others


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_tutorials_run_and_name_no_place_of_this_machine(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in cells) and any(cell["outputs"] for cell in cells)
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not any(output["output_type"] == "error" for output in outputs)
    text = "".join("".join(output.get("text", "")) for output in outputs)
    assert "Traceback" not in text and str(Path.home()) not in text and "\x1b" not in text
    assert not re.search(r"/tmp/|/work/", text)


def cells_of(path):
    """Code of a notebook without its commands, and the commands, in words."""
    code = ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    lines = "\n".join(code).replace("\\\n", " ").split("\n")
    commands = [line[1:] for line in lines if line.startswith("!")]
    return "\n".join(line for line in lines if not line.startswith("!")), in_words(commands)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_parse_and_import_what_there_is(path):
    code, commands = cells_of(path)
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name) or importlib.import_module(f"{node.module}.{alias.name}")
    for words in commands:
        assert words[0] in ("dpfed", "ls", "head")
        if words[0] == "dpfed":
            parsed(words)


def links(text):
    """Addresses on a page that are of the site itself."""
    return [
        html.unescape(link) for link in re.findall(r'<(?:a|img|link|script)\b[^>]*?\s(?:href|src)="(?!\w+:|//)([^"]+)"', text)
    ]


def leads(page, link, texts):
    """Whether an address is that of a file, and of a place on it."""
    path, _, anchor = unquote(link).partition("#")
    file = (page.parent / path).resolve() if path else page
    file = file / "index.html" if file.is_dir() else file
    known = (
        not anchor
        or file not in texts
        or anchor.startswith("__")
        or re.search(rf'\b(?:id|name)="{re.escape(anchor)}"', texts[file])
    )
    return file.is_file() and bool(known)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_fetches_nothing(site):
    texts = {page: page.read_text() for page in site.rglob("*.html")}
    for page, text in texts.items():
        assert not (lost := [link for link in links(text) if not leads(page, link, texts)]) or page.name == "404.html", (
            page,
            lost,
        )
        assert not re.search(r'<(?:script|img|iframe|link)[^>]*(?:src|href)="(?:https?:)?//', text), page
        assert not re.search(r"""(?:import|url)\(["']?https?://""", text), page


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_tutorials_run(path):
    command = [sys.executable, str(ROOT / "docs" / "tutorials" / "run.py"), path.stem, "--check"]
    done = run_to_end(command, capture_output=True, text=True, timeout=900, cwd=ROOT)
    assert done.returncode == 0, done.stderr
