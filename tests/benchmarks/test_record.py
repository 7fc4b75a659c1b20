"""A result file says which code it is of, and when that code was changed since."""

import subprocess

import pytest

from benchmarks import record


@pytest.mark.parametrize("folder", ["dpfed", "configs"])
def test_a_commit_is_marked_where_code_was_changed_since(folder, tmp_path, monkeypatch):
    for name in ("benchmarks/results", folder):
        (tmp_path / name).mkdir(parents=True)
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "--quiet"], [*who, "commit", "--quiet", "--allow-empty", "--message", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(record, "RESULTS", tmp_path / "benchmarks" / "results")
    clean = record.commit()
    assert len(clean) == 40
    (tmp_path / folder / "changed.py").write_text("")
    assert record.commit() == f"{clean}-dirty"
