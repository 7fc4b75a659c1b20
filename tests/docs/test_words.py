"""No page, help or message promises more than differential privacy gives; the rest of the wording is for readers to judge."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest
import typer.main

ROOT = Path(__file__).resolve().parents[2]
SHOWN = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "cluster/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.ipynb")),
    *sorted((ROOT / "configs").rglob("*.toml")),
    *(file for kind in ("md", "html", "service") for file in sorted((ROOT / "dpfed").rglob(f"*.{kind}"))),
]
RECORDS = "(?:records?|persons?|patients?|images?)"
SURELY = "(?:fully|completely|perfectly|absolutely|totally|always|100 ?%)"
NEVER = "(?:cannot|can never|could never|impossible to|never)"
FALSE_PROMISES = {
    r"\banonym(?:ous|i[sz])\w*": "records stay what they are; epsilon bounds what a release tells of one",
    rf"\b{SURELY} (?:private|secure|safe|protected)\b": "as private as epsilon says",
    rf"\bnothing (?:about|of) (?:\w+ ){{1,2}}{RECORDS} (?:is|are|can be) (?:learn|known|found)": "little, as epsilon says",
    rf"\b{NEVER} (?:be )?(?:leak|re-?identif|reconstruct|memori[sz])": "it becomes unlikely",
    r"\b(?:zero|no) (?:privacy )?(?:risk|leakage|leaks?)\b": "there is always some: epsilon",
    r"\bguarantees? (?:that )?(?:nobody|no one|nothing)\b": "it bounds by how much chances change",
    r"\b(?:GDPR|HIPAA)\b": "whether a law is kept is decided by people",
}


def false_promises(text):
    """What a text promises too much, and what holds instead."""
    return [(match[0], holds) for words, holds in FALSE_PROMISES.items() for match in re.finditer(words, text, re.IGNORECASE)]


def helps(command, path="dpfed"):
    """The help of a command, of its options, and of its subcommands."""
    texts = [command.help, *(getattr(option, "help", None) for option in command.params)]
    yield path, "\n".join(text for text in texts if text)
    for name, inner in getattr(command, "commands", {}).items():
        yield from helps(inner, f"{path} {name}")


def texts_of(source):
    """The texts of a module: messages, with the parts of an f-string that are known, docstrings and comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
    yield from (part.string for part in tokenize.generate_tokens(io.StringIO(source).readline) if part.type == tokenize.COMMENT)


@pytest.mark.parametrize(
    "sentence",
    [
        "The model is anonymous.",
        "Training on anonymised records is completely private.",
        "Nothing about a single patient can be learnt from it.",
        "The weights can never leak an image, and it is impossible to reconstruct one.",
        "There is no risk for anybody.",
        "It guarantees that nobody finds out.",
        "So the run is GDPR compliant.",
    ],
)
def test_a_false_promise_is_seen(sentence):
    assert false_promises(sentence)


def test_what_holds_may_be_said():
    assert not false_promises(
        "That limits what can be learnt about that record. It does not rule out that something is learnt."
    )


def test_the_help_of_commands_promises_nothing_false():
    from dpfed.cli import app

    assert not {path: promises for path, text in helps(typer.main.get_command(app)) if (promises := false_promises(text))}


def test_pages_modules_and_shown_files_promise_nothing_false():
    texts = {path: path.read_text(encoding="utf-8") for path in SHOWN}
    for path in (ROOT / "dpfed").rglob("*.py"):
        texts[path] = "\n".join(text for text in texts_of(path.read_text(encoding="utf-8")) if len(text.split()) > 2)
    assert not {str(path.relative_to(ROOT)): promises for path, text in texts.items() if (promises := false_promises(text))}
