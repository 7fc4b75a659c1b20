"""The records that a run means."""

from __future__ import annotations

from collections.abc import Callable

from dpfed.config import Config
from dpfed.data.importers import Progress
from dpfed.data.opening import open_records
from dpfed.data.public_store import open_public, public_fingerprint
from dpfed.data.store.records import RecordStore
from dpfed.models.building import preprocessing_of
from dpfed.privacy.method import method_named


def records_of(
    config: Config,
    progress: Progress | None = None,
    owner: int = 0,
    owners: int = 1,
    say: Callable[[str], None] | None = None,
) -> RecordStore:
    """Opens the records of a configuration, with images as its model wants them; see `open_records`.

    Args:
        config: settled.
        progress: called while records are imported.
        owner: whose records are wanted, of a store that is divided.
        owners: how many share the records.
        say: told what an import did not use.
    """
    return open_records(config.data, progress, owner, owners, preprocessing_of(config).interpolation, say)


def public_records_of(config: Config, private: RecordStore, progress: Progress | None = None) -> RecordStore | None:
    """Opens the public records that join every group, where the method has any; see `open_public`.

    Args:
        config: settled.
        private: the open records of the run.
        progress: called while records are generated.
    """
    if not method_named(config.bounding.method).public_records:
        return None
    wanted = preprocessing_of(config).interpolation
    return open_public(config.public, config.data, private, config.model.reads_text, wanted, progress)


def public_digest(config: Config) -> str | None:
    """The fingerprint of a configuration's public records, where they are those of a store; paths must be absolute.

    Raises:
        UserError: see `public_fingerprint`.
    """
    return public_fingerprint(config.public) if method_named(config.bounding.method).public_records else config.public.digest
