"""Makes the parts of a run from its configuration.

Only this package knows both the configuration and the parts: a part takes values and its own options.
"""
