"""The page on parts of your own does what it says: its code is run as it stands, with a small model and few steps."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import torch

import dpfed
from tests.own_parts import picture

PAGE = Path(__file__).parents[1] / "docs" / "library.md"
SMALLER = {
    "vit_tiny_patch16_224": "test_vit",
    "224": "160",
    "batch=1024, steps=300, group_size=16": "batch=16, steps=2, group_size=4",
    "batch=1024, steps=300, group_size=16, clip_norm=1.0": "batch=16, steps=2, group_size=4, clip_norm=1.0",
    "batch=1024, steps=300": "batch=32, steps=2",
}


def blocks(language: str, page: Path = PAGE) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def run_page(page: Path, smaller: dict[str, str], tmp_path: Path, monkeypatch) -> dict:
    """Runs the code of a page beside a folder of 48 photos of two classes; returns its names."""
    for number in range(48):
        folder = tmp_path / "photos" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        picture(number).save(folder / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    for block in blocks("python", page):
        for given, small in smaller.items():
            block = block.replace(given, small)
        exec(block, names)  # noqa: S102 our own page
    return names


@pytest.mark.long
def test_the_code_of_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    names = run_page(PAGE, SMALLER, tmp_path, monkeypatch)
    assert names["features"].shape == (48, 64) and "epsilon 8" in capsys.readouterr().out
    assert names["decoupled"](torch.randn(5, 2, 8)).dim() == 0 and names["records"].unit_name == "patient"


@pytest.mark.long
def test_the_code_for_who_knows_opacus_or_lightly_runs(tmp_path, monkeypatch):
    names = run_page(PAGE.with_name("coming-from.md"), {**SMALLER, "delta=1e-6, ": ""}, tmp_path, monkeypatch)
    assert names["features"].shape == (48, 64)
    assert (tmp_path / "runs" / "from-opacus" / "privacy_card.md").exists()


def test_the_configuration_of_the_page_is_one():
    (text,) = blocks("toml")
    config = dpfed.parse_config(tomllib.loads(text))
    assert config.data.is_own and config.model.is_own and config.objective.is_own and config.optimizer.is_own
