"""Methods that release noisy statistics of a batch; given these statistics, a record's loss depends only on that record."""
