"""The pictures of a report, and their files. They show public or generated records only. Reading the files needs no torch."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from dpfed.errors import UserError
from dpfed.files.reading import read_bytes, read_text
from dpfed.report.record_charts import Confusion, EmbeddingMap, as_json, from_json

INDEX, CHARTS = "gallery.json", "charts.json"


@dataclass(frozen=True)
class Tile:
    """One picture: PNG bytes, a text under it, and its role. The page frames the roles "query" and "right", not "plain"."""

    png: bytes
    text: str = ""
    role: str = "plain"


@dataclass(frozen=True)
class Strip:
    """A row of pictures that belong together, under a title (such as the caption that was searched for)."""

    title: str
    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class Section:
    """A section of the report with pictures; ``layout`` is "grid", "strips", or "pairs" of strips before and after training."""

    title: str
    note: str
    layout: str
    strips: tuple[Strip, ...]


@dataclass(frozen=True)
class Gallery:
    """All pictures of a report, and its charts of public records: maps of features, and confusion matrices."""

    sections: tuple[Section, ...]
    maps: tuple[EmbeddingMap, ...] = ()
    confusions: tuple[Confusion, ...] = ()

    def write(self, folder: str | Path) -> None:
        """Writes PNG files and an index into a folder, which is created."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        count = 0
        index = []
        for section in self.sections:
            strips = []
            for strip in section.strips:
                tiles = []
                for tile in strip.tiles:
                    name = f"{count:03d}.png"
                    count += 1
                    (folder / name).write_bytes(tile.png)
                    tiles.append({"file": name, "text": tile.text, "role": tile.role})
                strips.append({"title": strip.title, "tiles": tiles})
            index.append({"title": section.title, "note": section.note, "layout": section.layout, "strips": strips})
        (folder / INDEX).write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        charts = json.dumps(as_json(self.maps, self.confusions), ensure_ascii=False)
        (folder / CHARTS).write_text(charts + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: str | Path) -> Gallery:
        """Reads a gallery that `write` wrote.

        Raises:
            UserError: If a file is damaged, or a file other than charts.json is missing.
        """
        folder = Path(folder)
        try:
            index = json.loads(read_text(folder / INDEX))
            sections = tuple(_section(item, folder) for item in index)
            if not (folder / CHARTS).is_file():  # a run of an earlier dpfed
                return cls(sections)
            return cls(sections, *from_json(json.loads(read_text(folder / CHARTS))))
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise UserError(
                f"the gallery {folder} is damaged ({error}): restore the folder, or delete it; the report then has no "
                "pictures. [report-gallery-damaged]"
            ) from error


def _tile(item: dict, folder: Path) -> Tile:
    # Path(...).name, so that an index cannot point outside its folder.
    return Tile(_kept(folder / Path(item["file"]).name), str(item["text"]), str(item["role"]))


def _kept(file: Path) -> bytes:
    """Returns the bytes of a PNG file, once it is checked that they can be decoded."""
    png = read_bytes(file)
    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            image.load()
    except Exception as error:  # PIL's readers raise almost anything on damaged bytes
        raise ValueError(f"{file.name}: {error or type(error).__name__}") from error
    return png


def _section(item: dict, folder: Path) -> Section:
    strips = tuple(
        Strip(str(strip["title"]), tuple(_tile(tile, folder) for tile in strip["tiles"])) for strip in item["strips"]
    )
    return Section(str(item["title"]), str(item["note"]), str(item["layout"]), strips)
