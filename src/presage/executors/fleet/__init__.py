"""Several nodes with an agent on each: what the executors `ray` and `slurm` share. Agents and
guardians on the nodes import from here with the standard library alone; keep this file empty."""
