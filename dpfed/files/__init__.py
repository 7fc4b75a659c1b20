"""Files that must survive a crash, a power cut or a second process."""
