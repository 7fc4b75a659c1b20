"""Commands as pages show them, and what the program that would carry one out makes of its words."""

import itertools
import re
import shlex
from pathlib import Path

import typer.main

ROOT = Path(__file__).resolve().parents[2]
SITE_PAGE = (ROOT / "docs" / "a-site-in-15-minutes.md").read_text()


def indented(text):
    """Lines of the indented blocks, continuation lines joined."""
    return [line.strip() for line in re.sub(r"\\\n\s*", "", text).splitlines() if line.startswith("    ")]


def fenced(text):
    """Commands of the shell blocks."""
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)).replace("\\\n", " ")
    return [line.strip(" ()&") for line in re.split(r"\n|&&|;", blocks)]


def in_words(lines):
    """Lines as lists of words, each once, up to where output goes to a file."""
    commands = dict.fromkeys(tuple(shlex.split(line, comments=True)) for line in lines)
    return [list(itertools.takewhile(lambda word: word != ">", words)) for words in commands if words]


def parsed(words):
    """What its program makes of a command, without carrying it out; also of a command that it hands on."""
    program, arguments = words[0], words[1:]
    if program == "python":
        assert arguments[0] == "-m"
        if arguments[1] != "dpfed":
            assert (ROOT / arguments[1].replace(".", "/")).with_suffix(".py").exists() and not arguments[2:], arguments
            return {}
        program, arguments = "dpfed", arguments[2:]
    if program == "torchrun":
        from torch.distributed.run import get_args_parser

        given = get_args_parser().parse_args(arguments)
        rest = itertools.dropwhile(lambda word: word == "--", given.training_script_args)
        assert given.module
        return parsed(["python", "-m", given.training_script, *rest])
    if program == "ray":
        from ray.scripts.scripts import cli

        if arguments[:2] == ["job", "submit"]:
            end = arguments.index("--") + 1
            parsed(arguments[end:])
            arguments = [*arguments[:end], "true"]
        return _by_click(cli, arguments)
    assert program == "dpfed", words
    from dpfed.cli import app

    return _by_click(typer.main.get_command(app), arguments)


def _by_click(program, arguments):
    while hasattr(program, "commands"):
        _, program, _ = program.resolve_command(program.make_context("program", arguments[:1]), arguments[:1])
        arguments = arguments[1:]
    return program.make_context("program", list(arguments)).params
