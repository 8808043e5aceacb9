"""A simulated world: traces and clusters in, runs and reports out. Knows no policy by name."""
