"""What a run tells people: the privacy card and one self-contained HTML file."""
