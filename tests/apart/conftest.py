import shutil
import tempfile
from pathlib import Path

import pytest

from tests.apart.machines import impossible, switch

REASON = impossible()


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if REASON and here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=REASON))


@pytest.fixture(scope="module")
def place():
    folder = Path(tempfile.mkdtemp(prefix="apart-", dir="/tmp"))  # sockets lie in it, whose paths must be short
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def network(place):
    with switch(place) as made:
        yield made
