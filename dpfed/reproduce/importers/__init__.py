"""Importers of the papers' data sets, which `dpfed data import` finds by name."""
