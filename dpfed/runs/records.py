"""The records that a run means."""

from __future__ import annotations

from dpfed.config import Config
from dpfed.data.importers import Progress
from dpfed.data.opening import open_records
from dpfed.data.store.records import RecordStore
from dpfed.models.building import preprocessing_of


def records_of(config: Config, progress: Progress | None = None, owner: int = 0, owners: int = 1) -> RecordStore:
    """Opens the records of a configuration, with images as its model wants them; see `open_records`.

    Args:
        config: settled.
        progress: called while records are imported.
        owner: whose records are wanted, of a store that is divided.
        owners: how many share the records.
    """
    return open_records(config.data, progress, owner, owners, preprocessing_of(config).interpolation)
