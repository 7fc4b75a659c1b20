"""The privacy card of a run, and its report: one self-contained HTML file."""
