"""The page and the kits' READMEs: commands are those that programs understand, and print what the page shows."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from dpfed.cli import app
from dpfed.federation.provisioning.services import coordinator_files, site_files
from tests.federation.provisioning.office import Office

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "a-site-in-15-minutes.md").read_text().partition("\n## Appendix")[0]
READMES = (
    site_files("chest", "north", "superlink.example.org:9443", "image", "0" * 32)["README.md"]
    + coordinator_files("chest", "/srv/dpfed/chest", "superlink.example.org", 9443, "image")["README.md"]
)
FINGERPRINT = r"(?:[0-9a-f]{4} ){7}[0-9a-f]{4}"


def commands():
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    inline = re.findall(r"`(dpfed [^`]+)`", PAGE + READMES) + re.findall(r"^ +(dpfed .*?)(?: {2,}#.*)?$", READMES, re.MULTILINE)
    return sorted({line for text in [*blocks, *inline] for line in text.splitlines() if len(line.split()) > 3})


def parse_with(program, arguments):
    while hasattr(program, "commands"):
        context = program.make_context("program", arguments[:1])
        _, program, _ = program.resolve_command(context, arguments[:1])
        arguments = arguments[1:]
    return program.make_context("program", list(arguments)).params


@pytest.mark.parametrize("line", commands())
def test_every_command_is_one_that_its_program_understands(line):
    words = shlex.split(re.sub(r"EPSILON", "8", line))
    assert words[0] == "dpfed"
    parse_with(typer.main.get_command(app), words[1:])


def plain(text):
    """Without what changes from run to run."""
    text = re.sub(rf"{FINGERPRINT}|[0-9a-f]{{32}}|\d{{4}}-\d\d-\d\d|[\d.]+ GB|\d+ training", "X", text)
    return [line for line in re.sub(r"/\S*/(?=chest|records|site)", "/", text).splitlines() if line.strip()]


def shown(command):
    """What the page shows below the block with a command."""
    return PAGE[PAGE.index(f"\n{command}") :].split("```\n")[2]


def test_the_commands_print_what_the_page_shows(shapes, tmp_path, dpfed):
    office = Office(tmp_path, shapes.path, trust="distributed")
    code, output, _ = dpfed("federation", "provision", office.file)
    said = plain(shown("dpfed federation provision"))
    assert code == 0 and plain(output) == [line for line in said if "west" not in line]
    fingerprint = re.search(FINGERPRINT, output)[0]
    cards = {}
    for site in ("north", "south"):
        kit = tmp_path / "chest" / "kits" / f"chest-{site}.tar.gz"
        options = ["--coordinator", fingerprint, "--store", office.store(site), "--budget", 8, "--into", tmp_path / site]
        code, output, error = dpfed("site", "setup", kit, *options)
        assert code == 0, error
        cards[site] = re.search(FINGERPRINT, output)[0]
        (tmp_path / "chest" / "replies" / f"{site}.json").write_bytes(
            (tmp_path / site / f"chest-{site}" / "reply.json").read_bytes()
        )
    assert plain(output.replace("south", "north")) == plain(shown("dpfed site setup"))
    assert dpfed("federation", "provision", office.file)[0] == 0
    place = tmp_path / "north" / "chest-north"
    assert dpfed("site", "confirm", place, cards["south"])[0] == 0
    code, output, error = dpfed("site", "join", place, tmp_path / "chest" / "kits" / "chest-north.tar.gz", "--yes")
    assert code == 0 and "2 of 2 members: this site, south" in output, error
    code, output, _ = dpfed("site", "doctor", place)
    kinds = re.findall(r"^ +([a-z]+)  \w+ ", shown("dpfed site doctor"), re.MULTILINE)
    assert code == 1 and set(re.findall(r"^ +([a-z]+)  \w+ ", output, re.MULTILINE)) == set(kinds) - {"clock"}  # no server here
    code, output, _ = dpfed("site", "leave", place)
    labels = [re.sub(r"epsilon .* steps", "", line) for line in plain(output)]
    assert code == 0 and labels == [re.sub(r"epsilon .* steps", "", line) for line in plain(shown("dpfed site leave"))]
    code, output, _ = dpfed("site", "status", place)
    assert code == 0 and re.search(r"left +on \d{4}-\d\d-\d\d, permanently", output)
    code, _, error = dpfed("site", "serve", place)
    assert code == 2 and "permanently" in error
