"""Importers of the papers' data sets; `dpfed data import` finds them by name."""
