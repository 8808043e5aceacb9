"""The executor `slurm`, and Slurm's commands for whoever only reads (`presage watch`)."""
