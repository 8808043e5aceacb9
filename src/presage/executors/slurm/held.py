"""What others hold on the nodes of a Slurm. No I/O.

Users may not see each other's jobs, so it is what Slurm says a node has given away, less what jobs
of ours have there.
"""

from __future__ import annotations

from collections.abc import Iterable

from presage.executors.slurm.commands import SlurmJob, SlurmNode

__all__ = ["held_by_others"]


def held_by_others(
    nodes: Iterable[SlurmNode], ours: Iterable[SlurmJob]
) -> dict[str, tuple[int, int, int]]:
    """Milli-CPUs, MiB and GPUs by node, for nodes where there is any. A job of ours, or each
    component of one, has the same on all of its nodes (`StepShape`)."""
    own: dict[str, list[int]] = {}
    for job in ours:
        if not job.holds:
            continue
        count = max(job.node_count, len(job.nodes), 1)
        for name in job.nodes:
            sums = own.setdefault(name, [0, 0, 0])
            sums[0] += job.cpus // count
            sums[1] += job.memory_mib // count
            sums[2] += job.gpus // count
    others = {}
    for node in nodes:
        cpus, memory_mib, gpus = own.get(node.node.name, (0, 0, 0))
        held = (
            max(0, node.cpus_held - cpus) * 1000,
            max(0, node.memory_held_mib - memory_mib),
            max(0, node.gpus_held - gpus),
        )
        if any(held):
            others[node.node.name] = held
    return others
