"""Records: how they are stored, imported, generated and sampled, and how their views are made."""
