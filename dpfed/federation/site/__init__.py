"""An institution at work: its worker, its books, and the local socket where questions come in."""
