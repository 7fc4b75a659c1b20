"""The documentation as a site, built once for the tests that read it."""

import os
import sys
from pathlib import Path

import pytest

from tests.patience import run_to_end

ROOT = Path(__file__).resolve().parents[2]
MKDOCS = Path(sys.executable).with_name("mkdocs")


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the site; that it was built without a warning is tested here."""
    if not MKDOCS.exists():
        pytest.skip("mkdocs is not installed")
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [str(MKDOCS), "build", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = run_to_end(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0 and not done.stdout, done.stderr
    return folder
