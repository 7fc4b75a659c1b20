"""Code that all commands of the project share: how a command ends, and its output."""
