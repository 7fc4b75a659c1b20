"""What configurations are made of: sections of checked keys, and words for what is wrong."""
