"""The checklist of a release: one version everywhere, and a bill of materials that names every pinned package."""

import importlib.util
import shutil

import pytest
from installation import ROOT

_SPEC = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
release = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(release)


@pytest.fixture
def checkout(tmp_path):
    """The files that name the version, on the day of a release."""
    (tmp_path / "dpfed").mkdir()
    for name in ("pyproject.toml", "dpfed/__init__.py", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("(unreleased)", "(2027-01-01)"))
    return tmp_path


def test_this_checkout_can_be_rehearsed_and_a_dated_one_released(checkout):
    assert release.one_version(ROOT, rehearsal=True) == release.one_version(checkout)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("dpfed/__init__.py", '__version__ = "', '__version__ = "9.'),
        ("CHANGELOG.md", "(2027-01-01)", "(unreleased)"),
        ("CHANGELOG.md", "## 0", "## 9"),
    ],
)
def test_files_that_disagree_end_it(checkout, name, old, new):
    (checkout / name).write_text((checkout / name).read_text().replace(old, new))
    with pytest.raises(SystemExit, match="not done"):
        release.one_version(checkout)


def test_the_bill_of_materials_has_every_package_with_hashes():
    lock = ROOT / "requirements-core.lock"
    components = release.sbom(lock, "1")["components"]
    text = lock.read_text()
    assert len(components) == sum("==" in line for line in text.splitlines())
    assert sum(len(one["properties"]) for one in components) == text.count("--hash=sha256:")
    assert all(one["properties"] and one["purl"].endswith(f"@{one['version']}") for one in components)
