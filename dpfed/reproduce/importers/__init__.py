"""Importers of the papers' data sets, which `dpfed data import` finds by name; the most particular first."""

from dpfed.reproduce.importers.captioned_people import CuhkPedesImporter, DeepFashionImporter, RstpReidImporter
from dpfed.reproduce.importers.roco import RocoImporter
from dpfed.reproduce.importers.wilds import WildsImporter

IMPORTERS = (WildsImporter, CuhkPedesImporter, RstpReidImporter, DeepFashionImporter, RocoImporter)
