"""The page's commands print what it shows."""

import re

import pytest

from tests.docs.commands import SITE_PAGE
from tests.federation.provisioning.office import Office

FINGERPRINT = r"(?:[0-9a-f]{4} ){7}[0-9a-f]{4}"


def plain(text):
    """Without what changes from run to run."""
    text = re.sub(rf"{FINGERPRINT}|[0-9a-f]{{32}}|\d{{4}}-\d\d-\d\d|[\d.]+ GB|\d+ training", "X", text)
    return [line for line in re.sub(r"/\S*/(?=chest|records|site)", "/", text).splitlines() if line.strip()]


def shown(command):
    """What the page shows below the block with a command."""
    return SITE_PAGE[SITE_PAGE.index(f"\n{command}") :].split("```\n")[2]


@pytest.mark.long
def test_the_commands_print_what_the_page_shows(shapes, tmp_path, dpfed):
    office = Office(tmp_path, shapes.path, trust="distributed")
    code, output, _ = dpfed("federation", "provision", office.file)
    said = plain(shown("dpfed federation provision"))
    assert code == 0 and plain(output) == [line for line in said if "west" not in line]
    fingerprint = re.search(FINGERPRINT, output)[0]
    cards = {}
    for site in ("north", "south"):
        kit = tmp_path / "chest" / "kits" / f"chest-{site}.kit.json"
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
    code, output, error = dpfed("site", "join", place, tmp_path / "chest" / "kits" / "chest-north.kit.json", "--yes")
    assert code == 0 and "2 of 2 members: this site, south" in output, error
    code, output, _ = dpfed("site", "doctor", place)
    kinds = re.findall(r"^ +([a-z]+)  \w+ ", shown("dpfed site doctor"), re.MULTILINE)
    assert code == 1 and set(re.findall(r"^ +([a-z]+)  \w+ ", output, re.MULTILINE)) == set(kinds) - {"clock"}  # no server here
    code, output, _ = dpfed("site", "leave", place)
    labels = [re.sub(r"epsilon .* steps", "", line) for line in plain(output)]
    assert code == 0 and labels == [re.sub(r"epsilon .* steps", "", line) for line in plain(shown("dpfed site leave"))]
    code, _, error = dpfed("site", "serve", place)
    assert code == 2 and "permanently" in error
