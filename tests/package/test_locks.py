"""The quickstart's lock file is a part of the whole one: what dpfed itself needs, and nothing that only others need."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def pins(name):
    """Package -> its versions, and the lines of hashes of each."""
    text = (ROOT / name).read_text()
    packages = {}
    for entry in re.split(r"\n(?=\S)", text.strip()):
        package, version = re.match(r"([\w.-]+)(?:\[[^]]*\])?==([^ \\]+)", entry).groups()
        packages.setdefault(package, {})[version] = set(re.findall(r"sha256:\w+", entry))
    return packages


def test_the_short_lock_is_a_part_of_the_long_one_hash_for_hash():
    whole, core = pins("requirements.lock"), pins("requirements-core.lock")
    assert all(whole[package].get(version) == hashes for package in core for version, hashes in core[package].items())
    assert all(hashes for versions in core.values() for hashes in versions.values())


def test_the_short_lock_has_what_dpfed_needs_and_no_tools():
    core = pins("requirements-core.lock")
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.match(r"[\w-]+", line)[0].replace("_", "-") for line in needed} <= set(core)
    assert "setuptools" in core  # builds the editable install, without a network
    assert not {"ray", "flwr", "pytest", "mypy", "open-clip-torch", "transformers", "mkdocs"} & set(core)


def test_make_takes_the_short_lock_for_the_quickstart_alone():
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^quickstart: .*\$\(VENV\)/\.core\)?$", makefile, re.MULTILINE)
    for target in ("adapt", "federation", "test", "lint"):
        assert re.search(rf"^{target}: install$", makefile, re.MULTILINE)
