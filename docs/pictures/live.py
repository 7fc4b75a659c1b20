"""Takes the pictures of docs/watching.md anew, in Debian's chromium: a federation at work, and two runs compared.

    python docs/pictures/live.py FOLDER

The runs `shapes-epsilon-2` and `shapes-epsilon-8` are not trained again if FOLDER has them. About ten minutes on two cores.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

HERE = Path(__file__).parent
COMPARED = ("shapes-epsilon-2", "shapes-epsilon-8")
FEDERATION, STEPS, SHOWN_AT = "four-hospitals", 60, 29
SMALL = ["data.records=3000", "privacy.batch=256", f"privacy.steps={STEPS}", "evaluation.every=10"]
AWAY = {4, 5, 12, 13, 15, 16, 23, 24}  # steps without site-2; 15 and 23 also miss site-1's answer, and come to nothing
LOST = {15, 23}
COLOURS = 256
PATIENCE = 120_000  # milliseconds, on a busy machine


def federate(folder: Path) -> None:
    """A simulated federation whose sites fail now and then."""
    import dpfed
    from dpfed.federation import simulation
    from dpfed.federation.simulated import Simulation

    class Failing(simulation.InProcessChannel):
        def _step(self) -> int:
            journal = folder / "federation.jsonl"
            return journal.read_text().count('"opened"') if journal.exists() else 0

        def sites(self) -> list[str]:
            return [name for name in super().sites() if name != "site-2" or self._step() not in AWAY]

        def exchange(self, packets: dict[str, Any], seconds: float, most: int) -> Iterator[tuple[str, Any]]:
            lost = self._step() - 1 in LOST
            for address, packet in super().exchange(packets, seconds, most):
                yield address, None if lost and address == "site-1" else packet

    simulation.InProcessChannel = Failing  # type: ignore[misc]
    config = dpfed.load_config("federation", [f"name={FEDERATION}", *SMALL])
    simulation.simulate(config, folder, Simulation(sites=4, trust="distributed", drops=1))


def shoot(page: Any, name: str, height: int, width: int | None = None) -> None:
    """Saves the upper part of a page as a small PNG."""
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    picture = picture.crop((0, 0, picture.width, min(height, picture.height)))
    if width:
        picture = picture.resize((width, round(picture.height * width / picture.width)), Image.Resampling.LANCZOS)
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(HERE / f"{name}.png", optimize=True)


def main(folder: Path) -> None:
    """Makes what is missing, and takes the pictures."""
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "dpfed"]
    for name in COMPARED:
        if not (folder / name).exists():
            epsilon = name.rpartition("-")[2]
            settings = [f"--set={setting}" for setting in (f"name={name}", f"privacy.epsilon={epsilon}", *SMALL)]
            subprocess.run([*command, "pretrain", "quickstart", "--run", folder / name, *settings], check=True)
    metrics = folder / FEDERATION / "metrics.jsonl"
    shutil.rmtree(folder / FEDERATION, ignore_errors=True)
    federation = multiprocessing.get_context("spawn").Process(target=federate, args=(folder / FEDERATION,))
    served = subprocess.Popen(
        [*command, "serve", folder, "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        assert served.stdout is not None
        address = re.search(r"http://\S+", served.stdout.readline())
        assert address is not None
        root = address[0].partition("/?")[0]
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
            pages = {}
            for name, width, scheme in (("wide", 1000, "light"), ("phone", 390, "light"), ("dark", 1000, "dark")):
                pages[name] = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme).new_page()
                pages[name].set_default_timeout(PATIENCE)
                pages[name].goto(address[0])
            pages["wide"].goto(f"{root}/compare?" + "&".join(f"run={name}" for name in COMPARED))
            shoot(pages["wide"], "live-comparison", 1100)
            federation.start()
            while steps_of(metrics) < SHOWN_AT:
                assert federation.is_alive(), "the federation has ended too soon"
                time.sleep(0.2)
            for page in pages.values():
                page.goto(f"{root}/runs/{FEDERATION}")
                page.wait_for_timeout(1000)
            shoot(pages["wide"], "live-federation", 1400)
            shoot(pages["phone"], "live-phone", 1000)
            shoot(pages["dark"], "live-dark", 1262, 600)
            browser.close()
    finally:
        served.terminate()
        if federation.pid is not None:
            federation.terminate()


def steps_of(metrics: Path) -> int:
    """How many steps a run's metrics tell of."""
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return max((int(json.loads(line)["step"]) for line in lines if line.endswith("}")), default=0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
