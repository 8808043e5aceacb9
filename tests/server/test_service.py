"""What a server hands to its executor."""

from __future__ import annotations

from pathlib import Path

import pytest

from presage.control.site.executors import write_job_file
from presage.core.state import State
from presage.executors.node.runspec import RunSpec
from presage.layout import Layout
from presage.manifest import parse_manifest, to_spec
from presage.model import event as ev
from presage.model.cluster import Device, Node, Worker
from presage.store.records import JobRow

ON_ONE = (Worker(0, 0, "n", (0,)),)


@pytest.mark.parametrize("retry", ["{oom: {times: 2}}", "{failures: 1}"])
def test_a_job_that_ran_out_of_memory_is_handed_over_with_whole_gpus(
    tmp_path: Path, retry: str
) -> None:
    asked = "resources: {gpus: 0.5, memory: 1Gi}"
    manifest = parse_manifest(f"name: t\ncommand: python t.py\n{asked}\nretry: {retry}\n")
    row = JobRow(id="t", name="t", owner="me", submitted_at=0.0, manifest=manifest.to_json())
    state = State()
    state.apply(0.0, ev.NodeUp(Node("n", (Device(),))))
    state.apply(0.0, ev.JobSubmitted(to_spec(manifest, "t", "me")))
    layout = Layout(tmp_path)

    def handed_over() -> float:
        """GPUs that a worker asks Ray for."""
        write_job_file(layout, row, state.jobs["t"].spec)
        return RunSpec.load(layout.job_file("t")).roles[0].gpus

    state.apply(1.0, ev.Launch("t", 1, ON_ONE))
    assert handed_over() == state.active["t"].held_milli / 1000 == 0.5
    state.apply(2.0, ev.JobExited("t", 1, ev.Outcome.OUT_OF_MEMORY))
    state.apply(3.0, ev.Launch("t", 2, ON_ONE))
    assert handed_over() == state.active["t"].held_milli / 1000 == 1.0  # here as in Ray's books
