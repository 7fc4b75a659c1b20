"""Methods and layers for comparison with published work. No other package imports them: they are found by name."""
