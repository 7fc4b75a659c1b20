"""What configurations are made of: sections of checked keys, rules for keys without effect, and words for what is wrong."""
