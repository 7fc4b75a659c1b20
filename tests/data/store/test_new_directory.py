from __future__ import annotations

import pytest

from dpfed.errors import UserError
from dpfed.files.atomic import claimed


@pytest.mark.parametrize("place", ["store", "deep/er/store", "a/../../b", "a/b/../c/store"])
def test_whether_a_store_could_be_made_is_found_out_traceless(tmp_path, place):
    home = tmp_path / "home"
    home.mkdir()
    with claimed(home / place):
        pass
    assert list(tmp_path.iterdir()) == [home] and not list(home.iterdir())


def test_where_none_can_be_made_nothing_is_left_either(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="store-unwritable"), claimed(tmp_path / "new/../file/store"):
        pytest.fail("it was claimed")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
