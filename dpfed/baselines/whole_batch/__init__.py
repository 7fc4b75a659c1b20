"""Methods that contrast a whole batch: gradients and norms without holding all of it in memory."""
