"""Makes the parts of a run from its configuration. Only this room knows both; a part takes values and its own options."""
