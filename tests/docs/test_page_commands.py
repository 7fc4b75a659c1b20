"""Every command of the pages, the kits' READMEs and the manifests is one that its program understands."""

import re
import shlex
import sys

import pytest
import yaml

from dpfed.config import load_config
from dpfed.federation.provisioning.services import coordinator_files, site_files
from dpfed.runs.sweep import read_sweep
from tests.docs.commands import ROOT, SITE_PAGE, fenced, in_words, indented, parsed
from tests.patience import run_to_end

STARTS = "start-researcher start-cluster start-hospital start-reviewer".split()
NAMES = [*STARTS, *"budget commands for-data-protection-officers methods recipes reproduce results towers".split()]
CLUSTER = (ROOT / "cluster" / "README.md").read_text()
PAGES = "\n".join([CLUSTER, *((ROOT / page).read_text() for page in ("README.md", *(f"docs/{name}.md" for name in NAMES)))])
KITS = (
    site_files("chest", "north", "superlink.example.org:9443")["README.md"]
    + coordinator_files("chest", "/srv/dpfed/chest", "superlink.example.org", 9443)["README.md"]
)


def of_pages():
    """Commands of indented blocks and manifests."""
    deploy = ROOT / "cluster" / "deploy"
    lines = [*indented(PAGES), yaml.safe_load((deploy / "rayjob.yaml").read_text())["spec"]["entrypoint"]]
    config = yaml.safe_load((deploy / "ray-up.yaml").read_text())
    lines += config["head_start_ray_commands"] + config["worker_start_ray_commands"]
    return [words for words in in_words(lines) if words[0] in ("dpfed", "python", "torchrun", "ray")]


def of_sites():
    """Commands of shell blocks, and those that stand in a sentence."""
    inline = re.findall(r"`(dpfed [^`]+)`", SITE_PAGE + KITS) + re.findall(r"^ +(dpfed .*?)(?: {2,}#.*)?$", KITS, re.MULTILINE)
    whole = [line for text in inline for line in text.replace("EPSILON", "8").splitlines() if len(line.split()) > 3]
    return in_words([*fenced(SITE_PAGE.replace("EPSILON", "8")), *whole])


@pytest.mark.parametrize("words", [*of_pages(), *of_sites()], ids=" ".join)
def test_every_command_is_one_that_its_program_understands(words):
    parsed(words)


@pytest.mark.parametrize("page", STARTS)
def test_a_start_page_ends_in_a_command(page):
    text = (ROOT / "docs" / f"{page}.md").read_text().rstrip("\n")
    (words,) = in_words(indented(text.rpartition("\n\n")[2]))
    assert words[0] == "dpfed" and indented(text)[-1].startswith("dpfed") and words in of_pages()


@pytest.mark.parametrize("command", ["dpfed site serve site", "ray job submit -- python -m dpfed pretrain quickstart"])
def test_an_unknown_option_is_noticed(command):
    with pytest.raises(Exception, match="--misspelt"):
        parsed([*command.split(), "--misspelt", "1"])


def test_the_pages_name_configs_that_are_shipped(tmp_path, monkeypatch):
    """In any folder, so the commands are also those of who has installed the wheel."""
    monkeypatch.chdir(tmp_path)
    before = ("pretrain", "ray", "torchrun", "cost", "show")
    commands = [words for words in of_pages() if words[0] != "ray" and words[1] != "budget"]
    named = {name for words in commands for word, name in zip(words, words[1:], strict=False) if word in before}
    named = {name for name in named if not name.startswith("-") and name != "python"}
    assert len(named) >= 6
    for name in named:
        load_config(name)
    sweeps = [words[2:4] for words in commands if words[:2] == ["dpfed", "sweep"]]
    assert sweeps
    for base, sweep in sweeps:
        read_sweep(sweep, load_config(base))


@pytest.mark.slow
def test_the_readme_shows_what_the_simulator_prints():
    shown = re.findall(r"((?:    dpfed cluster cost.*\n(?:        .*\n)*))\n```\n((?:.*\n)*?)```\n", CLUSTER)
    assert len(shown) == 2
    for command, output in shown:
        words = shlex.split(command.replace("\\\n", ""))
        done = run_to_end([sys.executable, "-m", *words], capture_output=True, text=True, cwd=ROOT, timeout=120, check=True)
        assert [line.rstrip() for line in done.stdout.strip("\n").splitlines()] == output.splitlines()
