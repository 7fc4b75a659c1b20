"""The worst patterns of older prose stay out of pages, help and messages: name the actor, use the field's term."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest
import typer.main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "cluster" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = [
    *sorted((ROOT / "dpfed").rglob("*.md")),
    *sorted((ROOT / "dpfed").rglob("*.html")),
    *sorted((ROOT / "dpfed").rglob("*.service")),
    *sorted((ROOT / "configs").rglob("*.toml")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.ipynb")),
]
WORST = {
    r"com(?:es?|ing) to nothing|came to nothing": "fails, is discarded",
    r"\b(?:goes|go|went|going) on\b(?! (?:top|a|the))": "resumes, continues",
    r"nothing that show|brings? nothing": "no measurable gain",
    r"\b(?<!made )of before\b|as it was before\b": "the previous, earlier",
    r"\bis paid for\b|\bpaid for\b": "is charged",
    r"\bwritten down\b": "is logged, recorded",
    r"\bwhat becomes of\b|\bwhat is left for\b": "name the thing",
    r"\bis told\b(?! to)|\bis said to\b|\bit is said\b": "fails, is rejected",
    r"\bnobody's\b": "non-personal data; no person's",
    r"\b(?:what )?came of (?:it|them)\b": "its results",
    r"\bwants?\b(?! of|=)": "needs, requires",
    r"\b(?:the|its|a|budget's) (?:book|shelf)\b|\bbeside the budget\b": "the budget's ledger, the registry",
    r"\bgiv(?:e|en) (?:this|the) command\b": "run this command",
    r"\btold (?:apart|from)\b": "distinguished",
    r"\bat work\b|\b[Ii]mitat": "running; simulated",
    r"\bmend(?:ed|s)?\b|\bknobs?\b": "fix, repair; settings",
    r"\b(?:left|leaves?|, ) ?for good\b": "permanently",
    r"\bbehind step\b": "after step",
    r"\bcannot be had\b|\bdoes not take (?:it|them)\b": "is not available, is refused",
    r"(?<![Tt]here )\bis no (?!longer|measurable|better|worse|more|less)": "is not a",
    r"\bdo(?:es)? not travel\b|\bnothing but itself\b": "is not sent; only itself",
}
MOST = 25  # words of a sentence


def prose(text):
    """A page without code, tables, headings, pictures and generated parts, with the texts of links alone."""
    text = re.sub(r"^(```|~~~).*?^\1|<!-- (\w\S*) -->.*?<!-- /\2 -->", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(?: {4,}|\||#|!\[).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\[([^]]*)\]\([^)]*\)|`[^`\n]*`", lambda part: part[1] or "x", text)


def sentences(text):
    for paragraph in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) ", prose(text), flags=re.MULTILINE):
        yield from (part for part in re.split(r"(?<=[.:;?!])\s+", " ".join(paragraph.split())) if part)


def helps(command, path="dpfed"):
    """The help of a command, of its options, and of its subcommands."""
    texts = [command.help, *(getattr(option, "help", None) for option in command.params)]
    yield path, "\n".join(text for text in texts if text)
    for name, inner in getattr(command, "commands", {}).items():
        yield from helps(inner, f"{path} {name}")


def wrong(text):
    text = re.sub(r"<!-- (\w\S*) -->.*?<!-- /\1 -->|`+[^`\n]*`+", " ", text, flags=re.DOTALL)  # tables and output count, too
    return [(found[0], better) for pattern, better in WORST.items() for found in re.finditer(pattern, text, re.IGNORECASE)]


def texts_of(source):
    """The texts of a module: messages, with the parts of an f-string that are known, docstrings and comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
    yield from (part.string for part in tokenize.generate_tokens(io.StringIO(source).readline) if part.type == tokenize.COMMENT)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_no_worst_pattern_and_no_endless_sentence(page):
    text = page.read_text(encoding="utf-8")
    assert not wrong(text)
    assert not [sentence for sentence in sentences(text) if len(re.findall(r"[^\W\d_]{2,}", sentence)) > MOST]


def test_the_help_of_commands_has_none_of_them():
    from dpfed.cli import app

    assert not {path: found for path, text in helps(typer.main.get_command(app)) if (found := wrong(text))}


def test_modules_and_shown_files_have_none_of_them():
    texts = {path: path.read_text(encoding="utf-8") for path in SHOWN}
    for path in (ROOT / "dpfed").rglob("*.py"):
        texts[path] = "\n".join(text for text in texts_of(path.read_text(encoding="utf-8")) if len(text.split()) > 2)
    assert not {str(path.relative_to(ROOT)): found for path, text in texts.items() if (found := wrong(text))}
