"""Reading, writing and locking of files that must survive a crash, a power cut or a second process."""
