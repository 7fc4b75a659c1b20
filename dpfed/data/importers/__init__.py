"""Importers: they read data sets as people have them on disk, and write them to record stores."""

from __future__ import annotations

from dpfed.data.importers.detection import detect, importers
from dpfed.data.importers.importing import ImportProgress, ImportReport, import_records
from dpfed.data.importers.source import Importer, Source, Unreadable

__all__ = ["ImportReport", "Importer", "ImportProgress", "Source", "Unreadable", "detect", "import_records", "importers"]
