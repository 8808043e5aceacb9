"""Ray clusters. Agents and guardians on the nodes import from here with the standard library
alone; keep this file empty."""
