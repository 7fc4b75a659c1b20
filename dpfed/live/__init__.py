"""Live views of runs, read only from the runs' files: in a terminal, on a web page, and for a monitor."""
