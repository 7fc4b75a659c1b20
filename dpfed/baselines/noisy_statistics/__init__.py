"""Methods that release noisy statistics of a batch; given them, a record's loss depends on that record alone."""
