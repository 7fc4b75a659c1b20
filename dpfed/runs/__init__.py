"""What a run is from beginning to end: its directory, the job, what is refused first, what it leaves behind."""
