"""What the executor `ray` costs, on a head and four nodes that all run on this machine.

A launch is measured from the decision to the fact that all workers are up, beside the same launch
of the executor `local`; a run of `true` from the decision to its end. Then fifty gangs go through
the deciding loop, a job is resized, a PyTorch training goes from 2 to 4 workers and to 1, and a
node is killed under a job that saves every 50 ms. Run it with
`python -m benchmarks.ray_executor [--runs 20] [--gangs 50] [--json]`; it takes about two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from presage.executors.ray.executor import RayLink
from presage.model import event as ev
from presage.model.cluster import Worker
from presage.testing.executors import Counting, ExecutorKit, Watcher
from tests.executors.kit import LocalKit
from tests.executors.ray_kit import RayCluster, RayKit, run_gangs

TRAINING = Path(__file__).resolve().parent.parent / "examples" / "elastic" / "train.py"
SAVING = """
import os, pathlib, time
place = pathlib.Path(os.environ["PRESAGE_CHECKPOINT_DIR"])
step = max((int(path.name[5:]) for path in place.glob("step-*")), default=0)
print("from", step, flush=True)
while True:
    step += 1
    time.sleep(0.05)
    (place / ".new").mkdir()
    (place / ".new" / "state").write_text(str(step))
    (place / ".new").rename(place / f"step-{step:06}")
    print("step", step, flush=True)
"""


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--gangs", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        figures = measure(Path(place), options.runs, options.gangs)
    if options.json:
        print(json.dumps({"ray_executor": figures}))
        return
    for name, figure in figures.items():
        print(f"{name:<44} {figure:,.3f}")


def measure(place: Path, runs: int, gangs: int) -> dict[str, float]:
    """All figures, in seconds unless their name says otherwise."""
    local = LocalKit(place / "local")
    figures = {"load_average": os.getloadavg()[0]}
    figures |= _launches("local_1_worker", local, runs, (Worker(0, 0, "n0"),))
    local.close()
    began = time.monotonic()
    cluster = RayCluster(nodes=4)
    figures["cluster_start"] = time.monotonic() - began
    link = RayLink(cluster.address)
    try:
        kit = RayKit(place / "ray", cluster, link)
        alone, pair = (Worker(0, 0, "n0"),), (Worker(0, 0, "n0"), Worker(0, 1, "n1"))
        figures |= _launches("first_on_a_node", kit, 1, alone)
        figures |= _launches("1_worker", kit, runs, alone)
        figures |= _launches("first_on_another_node", kit, 1, pair)
        figures |= _launches("2_nodes", kit, runs, pair)
        before = _size(link.pid)
        passed = run_gangs(RayKit(place / "gangs", cluster, link), gangs)
        figures["gangs_total"] = passed["seconds"]
        figures["gangs_succeeded_count"] = passed["told"]["succeeded"]
        figures["gangs_driver_files_more_count"] = _size(link.pid) - before
        figures |= _resizes(RayKit(place / "resizes", cluster, link))
        figures |= _training(RayKit(place / "training", cluster, link))
        figures |= _node_loss(kit, cluster)
        kit.close()
    finally:
        link.close()
        cluster.close()
    return figures


def _launches(
    name: str, kit: ExecutorKit, runs: int, workers: tuple[Worker, ...]
) -> dict[str, float]:
    watch: Any = Watcher(kit)
    up, whole = [], []
    for n in range(runs):
        job = f"{name.replace('_', '-')}-{n}"
        watch.kit.write_job(job, command="true", workers=len(workers))
        began = time.time()
        watch.executor.launch(ev.Launch(job, 1, workers))
        watch.end(job)
        whole.append(time.time() - began)
        up.append(watch.of(job, ev.JobStarted)[0].at - began)
    return {
        f"{name}_up_median": statistics.median(up),
        f"{name}_run_median": statistics.median(whole),
    }


def _resizes(kit: RayKit) -> dict[str, float]:
    """From the decision to the next step with other workers, each on a node of its own."""
    counting = Counting(Watcher(kit))
    took = []
    for size in (2, 3, 1, 3, 2):
        began = time.monotonic()
        counting.to(size)
        took.append(time.monotonic() - began)
    counting.end()
    return {"resize_next_step_median": statistics.median(took)}


def _training(kit: RayKit) -> dict[str, float]:
    """The elastic example, each worker on a node of its own: seconds without a step, and from the
    decision to the first step of the new size."""
    kit.timeout_s = 120.0
    watch = Watcher(kit)
    command = [sys.executable, str(TRAINING), "--steps", "1000000", "--pace", "0.05"]
    kit.write_job(
        "training",
        command=command,
        launcher="torchrun",
        workers="1..4",
        resources={"gpus": 1, "cpus": 1},
    )
    crew = tuple(Worker(0, n, f"n{n}", (0,)) for n in range(4))
    sizes = (2, 4, 1)
    asked: list[float] = []
    watch.executor.launch(ev.Launch("training", 1, crew[:2]))
    for size in sizes:
        if asked:
            watch.resize("training", crew[:size])
        watch.until_log("training", f"worker 0 of {size}")
        time.sleep(3.0)  # some steps
        asked.append(time.time())
    watch.stop("training")
    watch.end("training")
    curve = kit.data / "jobs" / "training" / "results" / "curve.jsonl"
    points = [json.loads(line) for line in curve.read_text().splitlines()]
    assert [point["step"] for point in points] == list(range(1, len(points) + 1))
    figures = {}
    for before, size, began in zip(sizes, sizes[1:], asked, strict=False):
        last = max(point["at"] for point in points if point["workers"] == before)
        first = min(point["at"] for point in points if point["workers"] == size)
        figures[f"training_{before}_to_{size}_pause"] = first - last
        figures[f"training_{before}_to_{size}_in_all"] = first - began
    return figures


def _node_loss(kit: RayKit, cluster: RayCluster) -> dict[str, float]:
    watch = Watcher(kit)
    kit.write_job("mover", command=[sys.executable, "-c", SAVING], resources={"gpus": 1})
    watch.executor.launch(ev.Launch("mover", 1, (Worker(0, 0, "n3", (0,)),)))
    watch.until_log("mover", "step 40")
    began = time.monotonic()
    cluster.kill("n3")
    watch.end("mover")
    noticed = time.monotonic() - began
    watch.executor.launch(ev.Launch("mover", 2, (Worker(0, 0, "n1", (0,)),)))
    watch.until_log("mover", "step", attempt=2)
    going = time.monotonic() - began
    done = int(kit.log("mover", 1, "worker-0").split()[-1])
    again = done - int(kit.log("mover", 2, "worker-0").split()[1])
    watch.stop("mover", 2)
    watch.end("mover", 2)
    return {
        "node_loss_noticed": noticed,
        "node_loss_next_step": going,
        "node_loss_steps_done_again_count": again,
    }


def _size(pid: int) -> int:
    """Files that a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


if __name__ == "__main__":
    main()
