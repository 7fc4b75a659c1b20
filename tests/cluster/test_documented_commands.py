"""Every command of the READMEs, some guides and the manifests is one that its program understands, and prints what is shown."""

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer.main
import yaml

from dpfed.config import load_config
from dpfed.runs.sweep import read_sweep

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "cluster" / "README.md").read_text()
PAGES = (
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            "budget",
            "commands",
            "for-data-protection-officers",
            "methods",
            "recipes",
            "reproduce",
            "results",
            "towers",
        )
    ),
)
DEPLOY = ROOT / "cluster" / "deploy"
PROGRAMS = ("dpfed", "python", "torchrun", "ray")


def commands():
    """All commands of the pages' indented blocks and of the manifests as lists of words, continuation lines joined."""
    text = README + "\n".join((ROOT / page).read_text() for page in PAGES)
    lines = [line.strip() for line in re.sub(r"\\\n\s*", "", text).splitlines() if line.startswith("    ") and line.strip()]
    lines.append(yaml.safe_load((DEPLOY / "rayjob.yaml").read_text())["spec"]["entrypoint"])
    config = yaml.safe_load((DEPLOY / "ray-up.yaml").read_text())
    lines += config["head_start_ray_commands"] + config["worker_start_ray_commands"]
    found = dict.fromkeys(tuple(shlex.split(line, comments=True)) for line in lines)
    return [list(itertools.takewhile(lambda word: word != ">", words)) for words in found if words[0] in PROGRAMS]


def parse(words):
    """Has a command parsed by the program that would carry it out, without carrying it out, and whatever it would start."""
    program, arguments = words[0], words[1:]
    if program == "torchrun":
        from torch.distributed.run import get_args_parser

        parsed = get_args_parser().parse_args(arguments)
        assert parsed.module
        parse(
            [
                "python",
                "-m",
                parsed.training_script,
                *itertools.dropwhile(lambda word: word == "--", parsed.training_script_args),
            ]
        )
    elif program == "ray":
        from ray.scripts.scripts import cli

        if arguments[:2] == ["job", "submit"]:
            end = arguments.index("--") + 1
            parse(arguments[end:])
            arguments = [*arguments[:end], "true"]
        parse_with(cli, arguments)
    elif program == "dpfed":
        from dpfed.cli import app

        parse_with(typer.main.get_command(app), arguments)
        if arguments[:2] == ["cluster", "submit"]:  # it hands its arguments on
            parse(
                [
                    "dpfed",
                    "pretrain",
                    "--cluster",
                    "ray",
                    *itertools.dropwhile(lambda word: word.startswith("-"), arguments[2:]),
                ]
            )
    else:
        assert arguments[0] == "-m"
        if arguments[1] == "dpfed":
            return parse(arguments[1:])
        assert (ROOT / arguments[1].replace(".", "/")).with_suffix(".py").exists() and not arguments[2:], arguments


def parse_with(program, arguments):
    while isinstance(program, click.Group):
        context = program.make_context("program", arguments[:1])
        _, program, _ = program.resolve_command(context, arguments[:1])
        arguments = arguments[1:]
    program.make_context("program", list(arguments))


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_is_one_that_its_program_understands(words):
    parse(words)


def test_a_command_with_an_unknown_option_is_noticed():
    with pytest.raises(Exception, match="--misspelt"):
        parse(
            [
                "ray",
                "job",
                "submit",
                "--",
                "python",
                "-m",
                "dpfed",
                "pretrain",
                "--cluster",
                "ray",
                "configs/quickstart.toml",
                "--misspelt",
                "1",
            ]
        )


def test_the_readme_shows_each_way_to_start_a_run():
    shown = {tuple(words[:2]) for words in commands()}
    assert shown >= {("dpfed", "pretrain"), ("dpfed", "resume"), ("ray", "start"), ("ray", "up")}
    assert {"torchrun", "python"} <= {words[0] for words in commands()}
    assert any(words[:3] == ["dpfed", "cluster", "submit"] for words in commands())


def test_the_readme_names_configs_that_are_shipped(tmp_path, monkeypatch):
    """In any folder, so the commands are also those of who has installed the wheel."""
    monkeypatch.chdir(tmp_path)
    before = ("pretrain", "submit", "ray", "torchrun", "--config", "show")
    named = {
        name
        for words in commands()
        for word, name in zip(words, words[1:], strict=False)
        if word in before and words[1] != "budget" and words[0] != "ray"
    }
    named = {name for name in named if not name.startswith("-") and name != "python"}
    assert len(named) >= 6
    for name in named:
        load_config(name)
    sweeps = [words[2:4] for words in commands() if words[:2] == ["dpfed", "sweep"]]
    assert sweeps
    for base, sweep in sweeps:
        read_sweep(sweep, load_config(base))


@pytest.mark.slow
def test_the_readme_shows_what_the_simulator_prints():
    shown = re.findall(r"((?:    dpfed cluster cost.*\n(?:        .*\n)*))\n```\n((?:.*\n)*?)```\n", README)
    assert len(shown) == 2
    for command, output in shown:
        words = shlex.split(command.replace("\\\n", ""))
        done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, cwd=ROOT, timeout=120, check=True)
        assert [line.rstrip() for line in done.stdout.strip("\n").splitlines()] == output.splitlines()
