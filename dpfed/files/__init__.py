"""Files that a crash, a power cut or a second process must not spoil."""
