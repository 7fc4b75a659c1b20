"""From a configuration to the parts of a run: the one room that knows both. A part itself takes values and its own options."""
