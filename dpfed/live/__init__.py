"""What can be seen of runs while they last, read from their files alone: in a terminal, on a page, by a monitor."""
