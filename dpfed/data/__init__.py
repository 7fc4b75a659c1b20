"""Records: stores, importers, generated shapes, sampling and views."""
