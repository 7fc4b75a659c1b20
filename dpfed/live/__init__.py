"""What can be seen of runs while they go on, read from their files alone: in a terminal, on a page, by a monitor."""
