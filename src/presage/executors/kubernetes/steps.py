"""What Presage does inside a pod, in containers of its own image beside the job's.

`bring` runs before the job: it unpacks the work folder or checks it out, and downloads data.
`keep` runs beside it: it passes progress on, measures what the job's processes use, and when the
job's container has ended, it makes what is left results and copies them where the manifest wants
them. Standard library only, as for guardians. It never talks to the API server: it prints
`StepWord` lines and rows of telemetry, and leaves the last word as its termination message.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from presage.executors.node import keeping, wire, workdir
from presage.executors.node.messages import ProgressReport, RunPlan, StepWord
from presage.executors.node.processes import all_pids, read_stat
from presage.executors.node.report import read_progress, surroundings
from presage.telemetry.processes import ProcessTree
from presage.telemetry.rows import Row, line_of

__all__ = ["PLAN", "main"]

PLAN = "PRESAGE_PLAN"
"""The variable that names the plan's file."""
_LOOK_S = 0.5
_TICK_S, _CLOSE_LOOK_S, _SAMPLE_S = 1.0, 60.0, 5.0
"""A row each second of the first minute, then less often."""
_LAST_WORD = Path("/dev/termination-log")


def bring(plan: RunPlan) -> None:
    """Have everything there that the job needs."""
    for path in (plan.work, plan.data_dir, plan.progress_dir):
        path.mkdir(parents=True, exist_ok=True)
    folder = plan.folder.open("rb") if plan.folder else None
    workdir.prepare(plan, folder)


def keep(plan: RunPlan) -> None:
    """Pass progress on while the job runs; then keep and store what it made."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it goes when the job has gone
    if os.getpid() == 1:
        raise workdir.TransferError("the pod does not share its processes; results cannot be kept")
    file = Path(os.environ["PRESAGE_PROGRESS"])
    seen: wire.Mark | None = None
    report: ProgressReport | None = None
    meter = _Meter(plan, file.stem)
    running = True
    while running:
        running = bool(roots := _job_roots())
        if running:
            meter.look(roots)
        changed = wire.mark(file)
        if changed not in (None, seen):
            seen, report = changed, read_progress(file) or report
            _say(StepWord(progress=report))
        if running:
            time.sleep(_LOOK_S)
    kept = keeping.said(keeping.keep(plan), plan.most_results)
    workdir.store_results(plan)
    word = StepWord(progress=report, kept=kept)
    _say(word)
    with suppress(OSError):
        _LAST_WORD.write_text(json.dumps(wire.pack(word)))


class _Meter:
    """Prints what the processes of the job's container use, as often as a guardian writes it."""

    def __init__(self, plan: RunPlan, worker: str) -> None:
        self._plan, self._worker = plan, worker
        self._began = time.time()
        self._tree: ProcessTree | None = None
        self._last = Row(self._began, worker, cpu_s=0.0)
        self._due = 0.0

    def look(self, roots: Sequence[int]) -> None:
        """Measure, if it is time; what somebody runs beside the job counts as the job's."""
        now = time.time()
        if now < self._due:
            return
        self._due = now + (_TICK_S if now - self._began < _CLOSE_LOOK_S else _SAMPLE_S)
        if self._tree is None:
            self._tree = ProcessTree(roots[0])
        else:
            self._tree.find()
        for root in roots:
            if root not in self._tree.pids:
                self._tree.adopt(root)
        row = self._tree.row(now, self._worker, None, self._last)
        self._last = row._replace(**surroundings(self._plan.work, roots[0]))
        print(line_of(self._last).decode(), end="", flush=True)


def _job_roots() -> list[int]:
    """The first process of each container of the pod but the one that holds its namespaces
    (process 1) and ours: nobody in the pod has started them."""
    mine = os.getpid()
    for pid in _ancestors(mine):
        mine = pid
    first = (pid for pid in all_pids() if pid not in (1, mine))
    return sorted(pid for pid in first if (stat := read_stat(pid)) and stat.parent == 0)


def _ancestors(pid: int) -> Iterator[int]:
    while (stat := read_stat(pid)) and stat.parent:
        pid = stat.parent
        yield pid


def _say(word: StepWord) -> None:
    print(json.dumps(wire.pack(word)), flush=True)


def main() -> None:
    """Do the step that the first argument names."""
    step = {"bring": bring, "keep": keep}[sys.argv[1]]
    try:
        text = Path(os.environ[PLAN]).read_bytes()
        plan = wire.loads(RunPlan, text)
        place = plan.run / RunPlan.FILE
        if not place.exists():  # when the run began: what is younger is its own
            place.write_bytes(text)
        step(plan)
    except (workdir.TransferError, wire.MessageError, OSError, ValueError) as error:
        print(error, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
