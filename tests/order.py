"""Which tests one worker runs, and in which order: what shares a server, a cluster or a fitted
model stays together, and the longest goes first, so that the workers end at the same time.

A file is one group, so that its fixtures are made once. Seconds are those of one run; only their
order matters, and a group that is absent is short.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # ships none

__all__ = ["Groups", "arrange", "group_of"]

SPREAD = ("tests/test_docs.py", "tests/test_examples.py", "tests/test_api_python.py")
"""Files whose tests share nothing: any worker may run any of them."""

TOGETHER = {"tests/executors/test_ray.py": "ray", "tests/server/test_serve_ray.py": "ray"}
"""Files that are one group: one Ray cluster for both."""

SECONDS: dict[str, float] = {
    "ray": 96,
    "tests/executors/test_slurm.py": 150,
    "tests/executors/test_slurm_fire.py": 40,
    "tests/executors/test_slurm_commands.py": 30,
    "tests/web/test_every_page.py": 45,
    "tests/web/test_pages.py": 30,
    "tests/server/test_standby.py": 40,
    "tests/server/test_starts.py": 35,
    "tests/test_docs.py": 30,
    "tests/web/test_foresee.py": 20,
    "tests/server/test_kill.py": 15,
    "tests/test_api_python.py": 14,
    "tests/executors/test_resize.py": 13,
    "tests/cli/test_cli.py": 12,
    "tests/server/test_elastic.py": 12,
    "tests/server/test_backup.py": 12,
    "tests/server/test_tls.py": 11,
    "tests/test_deploy.py": 11,
    "tests/core/test_machine.py": 10,
    "tests/cli/test_predict.py": 10,
    "tests/server/test_scaling.py": 9,
    "tests/test_job.py": 9,
    "tests/sim/test_report.py": 8,
    "tests/reproduce/test_ai4dl.py": 8,
    "tests/executors/test_conformance.py": 8,
    "tests/policy/test_openb.py": 7,
    "tests/server/test_access.py": 7,
    "tests/server/test_gpus.py": 7,
    "tests/executors/test_local.py": 7,
    "tests/executors/test_containers.py": 7,
    "tests/server/test_own_policy.py": 7,
    "tests/server/test_fuzz.py": 6,
}


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a worker one group after the other. (The groups of xdist itself are marked in the
    names of tests, which this release of pytest does not let it change.)"""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    """The name of a test's group; its own where it is alone."""
    file = nodeid.partition("::")[0]
    return nodeid if file in SPREAD else TOGETHER.get(file, file)


def arrange(items: list[pytest.Item]) -> None:
    """Sort by how long a test's group takes, the longest first."""

    def seconds(item: pytest.Item) -> float:
        file = item.nodeid.partition("::")[0]
        return SECONDS.get(TOGETHER.get(file, file), 0.0)

    items.sort(key=lambda item: -seconds(item))
