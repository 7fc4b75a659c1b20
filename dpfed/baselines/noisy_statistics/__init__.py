"""Methods that release noisy statistics of a batch; given these statistics, a record's loss depends on that record alone."""
