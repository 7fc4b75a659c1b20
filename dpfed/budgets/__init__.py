"""The lifetime budget of a record set: what may be released of its records, over all runs, and what has been."""
