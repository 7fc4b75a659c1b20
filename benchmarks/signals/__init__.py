"""Whether Ctrl-C and SIGTERM end each command at any moment, on a busy machine, and leave nothing half-written."""
