"""The parts of a configuration's schema: sections of checked keys, conditions, and messages about wrong values."""
