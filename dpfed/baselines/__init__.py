"""Methods and layers for comparison with published work. Nothing else imports them: they are found by name."""
