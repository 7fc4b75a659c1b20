"""Code that all commands of the project share: their output, and how they end."""
