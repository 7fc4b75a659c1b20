"""Commands as pages show them, and what the program that would carry one out makes of its words."""

import argparse
import itertools
import re
import shlex
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import typer.main

ROOT = Path(__file__).resolve().parents[2]
SITE_PAGE, _, GUIDE = (ROOT / "docs" / "a-site-in-15-minutes.md").read_text().partition("\n## Appendix")


class Parsed(Exception):
    """Arguments were parsed; the rest of the program is not wanted."""


def indented(text):
    """Lines of the indented blocks, continuation lines joined."""
    return [line.strip() for line in re.sub(r"\\\n\s*", "", text).splitlines() if line.startswith("    ")]


def fenced(text):
    """Commands of the shell blocks."""
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)).replace("\\\n", " ")
    return [line.strip(" ()&") for line in re.split(r"\n|&&|;", blocks)]


def in_words(lines, but=("export", "umask", "head")):
    """The lines that start a program, each once, as lists of words."""
    found = dict.fromkeys(tuple(shlex.split(line, comments=True)) for line in lines)
    return [list(itertools.takewhile(lambda word: word != ">", words)) for words in found if words and words[0] not in but]


def parsed(words):
    """What its program makes of a command, without carrying it out; also of a command that it hands on."""
    program, arguments = words[0], [re.sub(r"^(RUN|NODE)_ID$", "4711", word) for word in words[1:]]
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
    if program == "dpfed" and arguments[:2] != ["site", "supernode"]:
        from dpfed.cli import app

        if arguments[:2] == ["cluster", "submit"]:
            rest = itertools.dropwhile(lambda word: word.startswith("-"), arguments[2:])
            parsed(["dpfed", "pretrain", "--cluster", "ray", *rest])
        return _by_click(typer.main.get_command(app), arguments)
    return _by_flower(*(("flower-supernode", arguments[2:]) if program == "dpfed" else (program, arguments)))


def _by_click(program, arguments):
    while hasattr(program, "commands"):
        context = program.make_context("program", arguments[:1])
        _, program, _ = program.resolve_command(context, arguments[:1])
        arguments = arguments[1:]
    return program.make_context("program", list(arguments)).params


def _by_flower(program, arguments):
    pytest.importorskip("flwr")
    (entry,) = entry_points(group="console_scripts", name=program)
    real = argparse.ArgumentParser.parse_known_args

    def stop(parser, given=None, namespace=None):
        raise Parsed(*real(parser, given, namespace))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLWR_DISABLE_UPDATE_CHECK", "1")
        patch.setattr("flwr.supercore.telemetry.FLWR_TELEMETRY_ENABLED", "0")
        main = entry.load()
        if program == "flwr":
            return _by_click(typer.main.get_command(main), arguments)
        patch.setattr(argparse.ArgumentParser, "parse_known_args", stop)
        patch.setattr(sys, "argv", [program, *arguments])
        with pytest.raises(Parsed) as found:
            main()
    assert found.value.args[1] == []  # what the program does not know
    return vars(found.value.args[0])
