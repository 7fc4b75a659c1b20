"""One file per published way to bound one record's influence; each defines `METHOD`."""
