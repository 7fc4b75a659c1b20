"""Takes a picture of docs/watching.md anew, in Debian's chromium: two runs compared.

    python docs/pictures/live.py FOLDER

The runs `shapes-epsilon-2` and `shapes-epsilon-8` are not trained again if FOLDER has them. About five minutes on two cores.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from PIL import Image

HERE = Path(__file__).parent
COMPARED = ("shapes-epsilon-2", "shapes-epsilon-8")
STEPS = 60
SMALL = ["data.records=3000", "privacy.batch=256", f"privacy.steps={STEPS}", "evaluation.every=10"]
COLOURS = 256
PATIENCE = 120_000  # milliseconds, on a busy machine


def shoot(page: Any, name: str, height: int) -> None:
    """Saves the upper part of a page as a small PNG."""
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    picture = picture.crop((0, 0, picture.width, min(height, picture.height)))
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
            page = browser.new_context(viewport={"width": 1000, "height": 800}, color_scheme="light").new_page()
            page.set_default_timeout(PATIENCE)
            page.goto(address[0])
            page.goto(f"{root}/compare?" + "&".join(f"run={name}" for name in COMPARED))
            shoot(page, "live-comparison", 1100)
            browser.close()
    finally:
        served.terminate()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
