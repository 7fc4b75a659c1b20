"""Makes the parts of a run from its configuration. Only this package knows both; a part takes values and its own options."""
