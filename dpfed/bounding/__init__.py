"""How one record's influence on a step is bounded."""
