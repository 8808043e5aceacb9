"""The health of a cluster's jobs and nodes, without HTTP: alerts, what ends of runs say, and what
may be done about trouble. The advisor that uses it is `control.advisors.health`."""
