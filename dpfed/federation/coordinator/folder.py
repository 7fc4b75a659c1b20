"""Reads and writes the coordinator's files, and makes the terms from a configuration and the sites' cards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpfed.config import Config, read_back
from dpfed.errors import UserError
from dpfed.federation.own_folder import own_folder, refuse_taken
from dpfed.files.atomic import create_file, write_atomically
from dpfed.files.reading import read_text
from dpfed.files.toml_file import read_toml
from dpfed.paths import local_path
from dpfed.progress import Progress, Silent, import_progress
from dpfed.protocol.cards import SiteCard
from dpfed.protocol.identity import Identity
from dpfed.protocol.named_code import code_of, refuse_own_records
from dpfed.protocol.terms import Terms
from dpfed.runs.preflight import refuse_impossible
from dpfed.runs.starts import checked_start, starting_weights


class CoordinatorFolder:
    """The coordinator's folder: its key, the terms, and its own configuration, which names the records for evaluation.

    `dpfed federation provision` makes this folder as ``federation`` in the folder of the whole federation.

    Attributes:
        path: Path of the folder.
        terms: File of the terms, to be given to the sites.
    """

    def __init__(self, path: Path) -> None:
        self.path = local_path(path, "the folder of a site or a coordinator")
        self.terms = self.path / "terms.json"
        self._identity, self._config = self.path / "identity.key", self.path / "config.toml"
        self._left = self.path / "left.json"

    def note_left(self, sites: list[str]) -> None:
        """Notes in a file which sites have left the federation permanently, so that the run can say why they are absent."""
        if sites != self.left():
            write_atomically(self._left, json.dumps(sites) + "\n")

    def left(self) -> list[str]:
        """Returns the names of the sites that have left; an empty list if their file is missing or cannot be read."""
        try:
            return list(map(str, json.loads(read_text(self._left))))
        except (OSError, ValueError, TypeError, RecursionError):  # the list only explains absences
            return []

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: Config,
        cards: list[Path] | list[SiteCard],
        progress: Progress | None = None,
        identity: Identity | None = None,
        **options: Any,
    ) -> CoordinatorFolder:
        """Makes the terms for the given sites, and the coordinator's folder.

        Args:
            path: Path of the new folder, which must not exist.
            config: Configuration of the run; ``[data]`` names the records on which the coordinator evaluates.
            cards: Cards of the sites, or files of these cards.
            identity: Coordinator's long-term cryptographic keys; default: new keys.
            progress: Progress, which shows the import or generation of the coordinator's records; default: nothing is shown.
            options: Further fields of the terms, except ``basis``; see `Terms.agree`.

        Returns:
            The new folder.

        Raises:
            UserError: If the terms are impossible (see `refuse_proposal` and `Terms.agree`), if a card, the starting weights,
                the coordinator's records or the public records cannot be used, or if the folder exists
                or cannot be made.
        """
        folder, progress = cls(Path(path)), progress or Silent()
        refuse_taken(folder.path)  # before the slow steps
        read = [card if isinstance(card, SiteCard) else SiteCard.load(card) for card in cards]
        refuse_proposal(config, len(read))
        from dpfed.runs.public_basis import proposed_basis, with_basis
        from dpfed.runs.records import public_records_of, records_of  # with torch, which takes seconds
        from dpfed.runs.resolution import resolve_defaults

        keys, config = identity or Identity.fresh(), resolve_defaults(config)
        starting_weights(config)
        # The store on which the run is evaluated; none of its records may be among the public records.
        Terms.agree(config, read, keys.signing_key, **options)  # refuses impossible terms before the slow steps
        store = records_of(config, import_progress(progress), say=progress.note)
        basis = proposed_basis(config, store, progress)
        config = with_basis(config, basis)
        terms = Terms.agree(config, read, keys.signing_key, **options, basis=None if basis is None else basis.text)
        public_records_of(config, store, import_progress(progress, "public records"))
        with own_folder(folder.path) as draft:
            new = cls(draft)
            keys.save(new._identity)
            create_file(new._config, config.dump())
            terms.save(new.terms)
        return folder

    @classmethod
    def open(cls, path: str | Path) -> CoordinatorFolder:
        """Opens a coordinator's folder.

        Raises:
            UserError: If the folder is not a coordinator's, or holds no terms yet.
        """
        folder = cls(Path(path))
        if not folder.terms.is_file():
            raise UserError(
                f"{path} holds no terms: `dpfed federation provision` makes them once all sites have replied. "
                "[coordinator-missing]"
            )
        return folder

    def identity(self) -> Identity:
        """Reads the coordinator's long-term cryptographic keys, for signatures and for agreeing on secrets.

        Raises:
            UserError: If the file of the keys cannot be read, or is damaged.
        """
        return Identity.load(self._identity)

    def config(self) -> Config:
        """Returns the run's configuration.

        Raises:
            UserError: If the file of the configuration cannot be read, or is damaged.
        """
        return read_back(read_toml(self._config, "coordinator's configuration"), str(self._config))


def refuse_proposal(config: Config, sites: int) -> None:
    """Refuses a configuration that cannot become terms, as far as this is known before the sites have sent their cards.

    Args:
        config: Configuration of the run; ``[data]`` names the records on which the coordinator evaluates.
        sites: Number of sites.

    Raises:
        UserError: If the configuration sets privacy.not_covered or privacy.seed, or names code that sites cannot be asked to
            import; if its starting weights, records or public store are missing or unfit; or if the configuration
            is impossible for every number of records.
    """
    if config.privacy.not_covered is not None:
        raise UserError(
            "privacy.not_covered is not for a federation, but for records of your own: leave it out. [terms-not-covered]"
        )
    if config.privacy.seed is not None:
        raise UserError("privacy.seed lets anyone compute the noise, and no site joins such terms: leave it out. [terms-seed]")
    refuse_own_records(config)
    code_of(config)
    checked_start(config)
    refuse_impossible(config, sites)
