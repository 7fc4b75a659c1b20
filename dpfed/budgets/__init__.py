"""The lifetime budget of a record set: a limit on the privacy cost of all runs on its records, and what they have spent."""
