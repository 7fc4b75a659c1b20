"""What a run says of the secret search that it is the best run of: ``search.json`` of its folder, and a row of its card."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfed.errors import UserError
from dpfed.files.reading import read_text
from dpfed.privacy.promise import round_up
from dpfed.privacy.selection import Selection

HIDDEN = ".search"  # of a search that goes on, in the folder where its best run will be


@dataclass(frozen=True)
class Searched:
    """A search, as far as it is public. The number of its runs is not, nor anything about those that were not published.

    Attributes:
        id: of the search, 16 hexadecimal digits.
        score: the figure that chose, such as ``image_to_text_R@10``.
        split: of the held-out records that it is a figure of.
        settings: name of each -> hash of its configuration.
        selection: what the search costs.
        began: the day, UTC.
        environment: code, hardware and versions at the beginning, see `dpfed.runs.provenance`.
    """

    id: str
    score: str
    split: str
    settings: dict[str, str]
    selection: Selection
    began: str
    environment: dict[str, Any]

    @classmethod
    def read(cls, file: Path) -> Searched | None:
        """What a file says; ``None``: it is not there.

        Raises:
            UserError: if it is damaged.
        """
        try:
            fields = json.loads(read_text(file)) if file.is_file() else None
            return None if fields is None else cls(**{**fields, "selection": Selection.from_dict(fields["selection"])})
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, UserError) as error:
            raise UserError(f"{file} is damaged ({error}): restore it.") from error

    @property
    def text(self) -> str:
        """The content of the file."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return json.dumps({**fields, "selection": self.selection.as_dict()}, indent=1) + "\n"

    def is_asked_for(self, asked: Searched) -> bool:
        """Whether this is the search that somebody asks for now."""
        return dataclasses.replace(asked, id=self.id, began=self.began, environment=self.environment).text == self.text

    @property
    def stated(self) -> str:
        """The search in words, for the card."""
        selection = self.selection
        return (
            f"this is the best run of a search, by {self.score} on {self.split} records. Only this run is published. How many "
            f"there were is secret: their number was drawn before the first, from the {selection.distribution} distribution "
            f"with mean {selection.mean:g}, and the settings of each by chance from {len(self.settings)} "
            f"({', '.join(self.settings)}). Epsilon is that of the search, by private selection (Papernot and Steinke 2022) "
            f"over the Rényi divergences of the most expensive settings. One such run alone would have epsilon "
            f"{round_up(selection.epsilon_of_one)}; {selection.as_many} of them, all shown, "
            f"{round_up(selection.epsilon_of_all)}. Day, code, hardware and versions are those of the beginning"
        )
