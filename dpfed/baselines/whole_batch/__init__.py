"""Engines for methods that contrast a whole batch: they compute gradients and norms without holding all gradients in memory."""
