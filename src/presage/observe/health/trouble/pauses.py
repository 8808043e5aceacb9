"""Runs that get no further: stuck when they use nothing meanwhile, spinning when they do.

A pause is judged by the run's own: how many times it got further, and its longest pause. A kind of
pause that it has not had yet (an evaluation, say) may last as long as a share of what it ran.
"""

from __future__ import annotations

import numpy as np

from presage.observe.health.trouble.findings import (
    Evidence,
    Subject,
    SubjectKind,
    Trouble,
    TroubleKind,
)
from presage.observe.health.trouble.formulas import pause_tail, posterior
from presage.observe.health.trouble.runs import WatchedRun
from presage.observe.health.trouble.windows import Bools, Floats, WorkerWindows

__all__ = ["no_progress", "stopped_workers"]

_PRIOR = 0.01
"""Of pauses that look odd, so many are trouble."""
_LEAST_ADVANCES = 5
_UNSEEN_SHARE = 0.3
"""A pause of a kind that was not seen yet may last this share of the time it ran so far, …"""
_UNSEEN_S = 600.0
"""… and at most so long."""
_IDLE_CORES = 0.02
_IDLE_GPU_PCT = 1.0
_MOST_LOOKS = 3
"""Idle samples count so often at most: they depend on each other."""
_QUIET_S = 2.0
"""After the last step, what it used is still that of the step."""


def stopped_workers(
    windows: WorkerWindows, runs: dict[str, WatchedRun], now: float
) -> list[Trouble]:
    """Workers whose processes a signal has stopped, at two looks or more."""
    if not len(windows):
        return []
    (latest,) = windows.recent("stopped", last=2)
    held = np.asarray((latest > 0).all(axis=1))
    troubles = []
    for (job, attempt, name), slot in windows.slots.items():
        if not held[slot] or job not in runs:
            continue
        at, stopped = windows.recent_of(slot, "at", "stopped")
        runs_on = np.flatnonzero(~(stopped > 0))
        since = float(at[runs_on[-1] + 1 if len(runs_on) else 0])
        count = int(stopped[-1])
        run = runs[job]
        series = Evidence(
            "stopped",
            f"{count} of its processes in state T since {now - since:.0f} s ago",
            _last(at),
            _last(stopped),
        )
        troubles.append(
            Trouble(
                TroubleKind.STUCK,
                Subject(SubjectKind.WORKER, f"{job}/{name}"),
                0.99,
                f"{name} was stopped by a signal (SIGSTOP); it does nothing",
                f"continue it (kill -CONT), or have the job start again: presage halt {job}",
                (series,),
                job,
                attempt,
                run.view.workers[name].node if name in run.view.workers else "",
            )
        )
    return troubles


def no_progress(windows: WorkerWindows, run: WatchedRun, now: float) -> Trouble | None:
    """A run that reported progress, and has not for far longer than its pauses lasted."""
    pace, view = run.pace, run.view
    if pace.advances < _LEAST_ADVANCES:
        return None
    pause_s = now - pace.last_at
    unseen_s = min(_UNSEEN_S, _UNSEEN_SHARE * (pace.last_at - view.started_at))
    chance = pause_tail(pace.advances, max(pace.longest_s, unseen_s, 1.0), pause_s)
    if chance >= 0.5:
        return None
    used = _PauseUse(windows, run)
    if not used.known or used.busy_with_files:
        return None
    kind = TroubleKind.SPINNING
    if used.idle:
        kind = TroubleKind.STUCK
        chance *= used.idle_before ** min(used.samples, _MOST_LOOKS)
    probability = posterior(_PRIOR, chance)
    steps = Evidence(
        "progress",
        f"{pace.advances} reports before, the longest pause {pace.longest_s:.0f} s; none for "
        f"{pause_s:.0f} s",
        (pace.last_at, now),
        (pace.where[0], pace.where[0]) if pace.where else (),
    )
    doing = "uses nothing" if used.idle else f"keeps {used.cores:.1f} cores busy"
    if not used.idle and used.gpu_pct > _IDLE_GPU_PCT:
        doing += f" and its GPUs at {used.gpu_pct:.0f} %"
    who, subject = "the job", Subject(SubjectKind.JOB, view.job)
    if used.culprit:
        who = used.culprit
        subject = Subject(SubjectKind.WORKER, f"{view.job}/{used.culprit}")
    text = f"no progress for {pause_s:.0f} s, and {who} {doing}"
    action = (
        f"look where it hangs: presage exec {view.job} -- py-spy dump --pid PID; then "
        f"presage halt {view.job} and resume it"
    )
    node = _node_of(run, used.culprit)
    shown = (steps, *used.evidence)
    return Trouble(kind, subject, probability, text, action, shown, view.job, view.attempt, node)


def _node_of(run: WatchedRun, worker: str) -> str:
    places = run.view.workers
    if worker in places:
        return places[worker].node
    nodes = {place.node for place in places.values()}
    return nodes.pop() if len(nodes) == 1 else ""


class _PauseUse:
    """What the workers of a run used in its present pause, and before."""

    def __init__(self, windows: WorkerWindows, run: WatchedRun) -> None:
        self.known, self.idle, self.culprit = False, True, ""
        self.samples, self.cores, self.gpu_pct = 0, 0.0, 0.0
        self.busy_with_files = False
        self.evidence: tuple[Evidence, ...] = ()
        since = run.pace.last_at + _QUIET_S
        before_idle = before = 0
        idle_workers: list[str] = []
        for name in run.view.workers:
            slot = windows.slots.get((run.view.job, run.view.attempt, name))
            if slot is None:
                continue
            columns = ("at", "cpu_cores", "gpu_util_pct", "read_bytes", "write_bytes")
            at, cores, gpu, read, written = windows.recent_of(slot, *columns)
            after = at > since
            if after.sum() < 2:
                continue
            self.known = True
            calm = _calm(cores, gpu)
            self.samples = max(self.samples, int(after.sum()))
            before += int((~after).sum())
            before_idle += int((calm & ~after).sum())
            if calm[after].all():
                idle_workers.append(name)
            else:
                self.idle = False
                self.cores += float(np.nanmean(cores[after]))
                if not np.isnan(gpu[after]).all():
                    self.gpu_pct = max(self.gpu_pct, float(np.nanmean(gpu[after])))
            self.busy_with_files |= _moves_files(at, read + written, after)
            if len(self.evidence) < 4:
                held = Evidence("cpu_cores", f"cores of {name}", tuple(at[-16:]), _last(cores))
                self.evidence += (held,)
        self.idle_before = (before_idle + 1) / (before + 2)
        workers = len(run.view.workers)
        if not self.idle and len(idle_workers) == 1 and workers > 1:
            self.culprit = idle_workers[0]  # the others wait for it, busily
            self.idle = True


def _calm(cores: Floats, gpu: Floats) -> Bools:
    quiet = np.nan_to_num(cores) < _IDLE_CORES
    return np.asarray(quiet & ~(gpu > _IDLE_GPU_PCT))


def _moves_files(at: Floats, moved: Floats, after: Bools) -> bool:
    """Whether it reads or writes far more than before: it loads data, or saves a checkpoint."""
    if np.isnan(moved).all() or (~after).sum() < 2:
        return False
    inside, outside = at[after], at[~after]
    now_rate = (moved[after][-1] - moved[after][0]) / max(inside[-1] - inside[0], 1e-3)
    then_rate = (moved[~after][-1] - moved[~after][0]) / max(outside[-1] - outside[0], 1e-3)
    return bool(now_rate > 10 * then_rate + (1 << 20))


def _last(values: Floats) -> tuple[float, ...]:
    return tuple(float(v) for v in np.nan_to_num(values[-16:]))
