"""Methods that release noisy statistics of a batch, from which every record's own loss follows."""
