"""Records: stores, importers, generated records, sampling and views."""
