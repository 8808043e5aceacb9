"""The Slurm jobs that Presage submits: their names, what they ask for, and their script.

Text and values alone: `commands` is what talks to Slurm.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from presage.executors.node.runs import boot
from presage.executors.slurm.commands import BatchJob, SlurmNode, StepShape

if TYPE_CHECKING:
    from presage.executors.slurm.driver import SlurmDriver

__all__ = ["agent_job", "job_name", "run_shapes"]

_OVERHEAD_MIB = 128
"""What an agent and a guardian take besides the workers."""
_WARN_S = 300.0
_MIB = 1 << 20


def job_name(reservation: str) -> str:
    """What Slurm calls the job of a reservation: the same without what its filters would split."""
    return re.sub(r"[^\w.-]", ".", reservation)


def run_shapes(
    asked: Sequence[tuple[str, Mapping[str, float]]], hardware: Mapping[str, SlurmNode]
) -> tuple[StepShape, ...]:
    """What a run asks of each node, nodes that are asked for the same together. Different amounts
    on different nodes are what heterogeneous jobs are for."""
    groups: dict[tuple[int, int, int], list[str]] = {}
    for node, bundle in asked:
        memory = bundle.get("memory", 0.0)
        amounts = (
            max(1, math.ceil(bundle.get("CPU", 0.0))),
            math.ceil(memory / _MIB) + _OVERHEAD_MIB if memory else 0,
            math.ceil(bundle.get("GPU", 0.0)),
        )
        groups.setdefault(amounts, []).append(node)
    return tuple(
        StepShape(tuple(sorted(nodes)), len(nodes), cpus, memory, gpus)
        for (cpus, memory, gpus), nodes in groups.items()
    )


def agent_job(
    driver: SlurmDriver, name: str, shapes: tuple[StepShape, ...], limit_s: float | None
) -> BatchJob:
    """A job that starts an agent on each of its nodes. It is never requeued: Presage itself starts
    a run again that Slurm took away, as another attempt."""
    home = driver.layout.slurm_agents(name)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    most_s = driver.partition.most_s
    limit_s = min((limit for limit in (limit_s, most_s) if limit is not None), default=None)
    alone = sum(shape.count for shape in shapes) == 1
    warn_s = int(min(_WARN_S, limit_s / 4)) if limit_s is not None else int(_WARN_S)
    return BatchJob(
        name=name,
        shapes=shapes,
        script=_script(str(home), shapes, alone=alone),
        output=home / "job.out",
        directory=home,
        limit_s=limit_s,
        # A single agent is the batch script itself; several are a step.
        signal=f"{'B:' if alone else ''}USR1@{warn_s}",
        options=(f"--partition={driver.partition.name}", *driver.setup.options),
    )


def _script(home: str, shapes: tuple[StepShape, ...], *, alone: bool) -> str:
    agent = shlex.join(boot(sys.executable, "slurm.agent", home))
    if alone:
        return f"#!/bin/sh\nexec {agent}\n"
    parts = []
    for number, shape in enumerate(shapes):
        # One agent that dies takes no other along: those have runs to end.
        words = ["--kill-on-bad-exit=0", "--wait=0", f"--nodes={shape.count}"]
        words += [f"--ntasks={shape.count}", f"--cpus-per-task={shape.cpus}"]
        words += [f"--het-group={number}"] if len(shapes) > 1 else []
        parts.append(f"{' '.join(words)} {agent}")
    return f"#!/bin/sh\nexec srun {' : '.join(parts)}\n"
