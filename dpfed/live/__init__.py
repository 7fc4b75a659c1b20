"""Live views of runs, made from the runs' files alone: in a terminal, on a web page, and for monitoring with Prometheus."""
