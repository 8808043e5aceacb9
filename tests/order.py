"""Which tests one worker runs, and in which order: what shares a server, a cluster or a fitted
model stays together, and the longest goes first, so that the workers end at the same time.

A file is one group, so that its fixtures are made once. Seconds are those of one run; only their
order matters, and a group that is absent is short.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # ships none

__all__ = ["Groups", "arrange", "group_of"]

SPREAD = (
    "tests/test_docs.py",
    "tests/test_examples.py",
    "tests/test_api_python.py",
    "tests/foresee/graph/test_hub_others.py",
    "tests/foresee/graph/test_torch_trace.py",
)
"""Files whose tests share nothing: any worker may run any of them. Short tests of these are left
for the end, where they even out what the workers still have to do."""

TOGETHER = {
    "tests/executors/test_ray.py": "ray",
    "tests/server/test_serve_ray.py": "ray",
    "tests/web/test_every_page.py": "web",
    "tests/web/test_foresee.py": "web",
    "tests/web/test_pages.py": "web",
    "tests/executors/test_kubernetes_plane.py": "kubernetes",
    "tests/executors/test_kubernetes_api.py": "kubernetes",
    "tests/executors/test_kubernetes_attach.py": "kubernetes",
    "tests/executors/test_kubernetes_limiting.py": "kubernetes",
    "tests/executors/test_kubernetes_gangs.py": "kubernetes",
    "tests/executors/test_kubernetes_adopted.py": "kubernetes",
    "tests/executors/test_kubernetes_operators.py": "kubernetes",
    "tests/test_deploy_kubernetes.py": "kubernetes",
    "tests/cli/test_doctor.py": "kubernetes",
    "tests/server/test_serve_adopt.py": "kubernetes",
    "tests/server/test_serve_kubernetes.py": "kubernetes",
    "tests/executors/test_watch_kubernetes.py": "kubernetes",
}
"""Files that are one group: one Ray cluster, one Kubernetes control plane, one browser and its
server for all of them."""

SECONDS: dict[str, float] = {
    "tests/executors/test_slurm.py": 100,
    "tests/executors/test_slurm_fire.py": 20,
    "tests/executors/test_slurm_growth.py": 40,
    "tests/server/test_health.py": 40,
    "tests/gym/test_training.py": 25,
    "tests/gym/test_notebook.py": 12,
    "tests/gym/test_services.py": 8,
    "tests/sim/test_guarding.py": 10,
    "tests/server/test_guard.py": 10,
    "tests/foresee/bursts/test_distributed.py": 30,
    "tests/executors/test_slurm_commands.py": 30,
    "tests/foresee/runtime/test_spark_log.py": 20,
    "tests/executors/test_shares.py": 15,
    "tests/foresee/runtime/test_tables.py": 10,
    "tests/foresee/runtime/test_search.py": 10,
    "tests/foresee/runtime/test_recurrence.py": 8,
    "tests/server/test_tune.py": 15,
    "ray": 100,
    "web": 130,
    "kubernetes": 60,
    "tests/executors/test_watch_slurm.py": 40,
    "tests/foresee/graph/test_precomputed.py": 15,
    "tests/server/test_starts.py": 45,
    "tests/test_docs.py": 38,
    "tests/server/test_fuzz.py": 32,
    "tests/foresee/graph/test_load.py": 10,
    "tests/server/test_commands.py": 26,
    "tests/cli/test_phases.py": 8,
    "tests/control/test_failing.py": 8,
    "tests/server/test_policy.py": 8,
    "tests/server/test_access.py": 21,
    "tests/test_api_python.py": 21,
    "tests/server/test_standby.py": 45,
    "tests/foresee/graph/test_huggingface.py": 19,
    "tests/test_job.py": 19,
    "tests/server/test_kill.py": 19,
    "tests/test_architecture.py": 19,
    "tests/sim/test_report.py": 18,
    "tests/policy/test_openb.py": 18,
    "tests/cli/test_cli.py": 18,
    "tests/control/test_needs.py": 17,
    "tests/server/test_backup.py": 17,
    "tests/reproduce/test_sharing_experiments.py": 17,
    "tests/server/test_live.py": 16,
    "tests/server/test_own_policy.py": 16,
    "tests/server/test_attacks_between_users.py": 16,
    "tests/foresee/test_steptime.py": 16,
    "tests/foresee/test_utilization.py": 15,
    "tests/executors/test_sources.py": 15,
    "tests/server/test_elastic.py": 15,
    "tests/executors/test_resize.py": 15,
    "tests/test_examples.py": 15,
    "tests/foresee/test_memory.py": 15,
    "tests/executors/test_conformance.py": 15,
    "tests/server/test_startup.py": 15,
    "tests/executors/test_containers.py": 13,
    "tests/server/test_sign_in.py": 13,
    "tests/executors/test_local.py": 13,
    "tests/core/test_machine.py": 12,
    "tests/server/test_gpus.py": 12,
    "tests/server/test_jobs.py": 11,
    "tests/foresee/graph/test_onnx.py": 11,
    "tests/server/test_scaling.py": 11,
    "tests/server/test_sweeps.py": 11,
    "tests/provision/test_rightsize.py": 10,
    "tests/executors/test_attach.py": 10,
    "tests/store/test_conformance.py": 10,
    "tests/foresee/test_sandbox.py": 9,
    "tests/reproduce/test_ai4dl.py": 9,
    "tests/test_light_install.py": 9,
    "tests/store/test_sql.py": 9,
    "tests/server/test_results.py": 9,
    "tests/test_manifest.py": 8,
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
