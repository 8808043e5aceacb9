"""A Slurm cluster, by its commands."""
