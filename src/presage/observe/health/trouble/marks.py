"""Trouble that one value gives away: a metric that is NaN or diverged, an error that the driver of
a GPU reported, GPUs that are held and idle."""

from __future__ import annotations

from statistics import median

import numpy as np

from presage.observe.health.trouble.findings import (
    Evidence,
    Subject,
    SubjectKind,
    Trouble,
    TroubleKind,
)
from presage.observe.health.trouble.formulas import posterior
from presage.observe.health.trouble.runs import WatchedRun
from presage.observe.health.trouble.windows import WorkerWindows

__all__ = ["bad_metric", "gpu_errors", "idle_gpus"]

_LATEST = 5
_LEAST_POINTS = 20
_FAR = 8.0
"""Times the spread of its early values that a loss must be above them, …"""
_TIMES = 3.0
"""… and times its early level."""
_OF_THE_PROGRAM = {13: "graphics engine exception", 31: "memory page fault", 43: "stopped", 45: ""}
"""Xids that are usually a fault of the program."""
_XIDS = {
    48: "double-bit ECC error",
    63: "row remapping",
    64: "row remapping failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high rate of single-bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP timeout",
    **_OF_THE_PROGRAM,
}
_IDLE_PRIOR = 0.3
"""Of jobs that let their GPUs idle for long, so many never use them."""
_STARTS_S = 120.0
"""A job that is healthy has its GPUs idle so long while it starts; twice as long is a fourth as
frequent."""
_IDLE_PCT = 1.0


def bad_metric(run: WatchedRun, now: float) -> Trouble | None:
    """NaN or an infinite value at the latest report, or a loss that rises without an end."""
    view = run.view
    subject = Subject(SubjectKind.JOB, view.job)
    action = "go back to a checkpoint from before, with a smaller learning rate or clipping"
    if run.not_finite:
        names = ", ".join(run.not_finite)
        text = f"{names} is NaN or infinite since {now - run.not_finite_at:.0f} s ago"
        evidence = Evidence(names, "reported as not finite", (run.not_finite_at,), ())
        kind, shown = TroubleKind.NOT_FINITE, (evidence,)
        return Trouble(kind, subject, 0.999, text, action, shown, view.job, view.attempt)
    for name, points in run.metrics.items():
        if len(points) < _LEAST_POINTS:
            continue
        values = [value for _, value in points]
        early, late = values[: len(values) // 2], values[-_LATEST:]
        level = median(early)
        spread = max(median(abs(one - level) for one in early), 0.01 * abs(level), 1e-9)
        above = (min(late) - level) / (1.4826 * spread)
        if above < _FAR or min(late) < _TIMES * max(abs(level), 1e-9):
            continue
        # Chebyshev, one-sided, for each of the latest: no shape of the noise is assumed.
        chance = (1 / (1 + above**2)) ** 2
        text = f"{name} rose from about {level:.4g} to {late[-1]:.4g} and stays there"
        at = tuple(at for at, _ in points)
        evidence = Evidence(name, f"{above:.0f} spreads above its level", at, tuple(values))
        kind = TroubleKind.DIVERGED
        odds = posterior(0.05, chance)
        return Trouble(kind, subject, odds, text, action, (evidence,), view.job, view.attempt)
    return None


def gpu_errors(windows: WorkerWindows, runs: dict[str, WatchedRun]) -> list[Trouble]:
    """GPUs whose driver reported an error to a worker that is on them."""
    if not len(windows):
        return []
    at, xids, ecc = windows.recent("at", "gpu_xid", "gpu_ecc_errors")
    with np.errstate(invalid="ignore"):
        grew = np.fmax.reduce(ecc, axis=1) > np.fmin.reduce(ecc, axis=1)
    marked = (xids[:, -1] > 0) | grew
    troubles = []
    for (job, attempt, name), slot in windows.slots.items():
        run = runs.get(job)
        if not marked[slot] or run is None or name not in run.view.workers:
            continue
        place = run.view.workers[name]
        xid = 0 if np.isnan(xids[slot, -1]) else int(xids[slot, -1])
        said, probability = [], 0.97
        evidence = []
        if xid:
            said.append(f"Xid {xid} ({_XIDS.get(xid) or 'see the list of the driver'})")
            first = float(at[slot, np.flatnonzero(xids[slot] > 0)[0]])
            evidence.append(Evidence("gpu_xid", f"Xid {xid}", (first,), (float(xid),)))
        if grew[slot]:
            known = ecc[slot, np.isfinite(ecc[slot])]
            count = int(known[-1] - known[0])
            said.append(f"{count} memory errors that could not be corrected")
            evidence.append(Evidence("gpu_ecc_errors", "uncorrected", (), (count,)))
        action = f"drain the node and have the GPU checked: presage drain {place.node}"
        by_program = xid in _OF_THE_PROGRAM and not grew[slot]
        if by_program:
            action = "this Xid is usually a fault of the program: look at its log first"
        subject = Subject(SubjectKind.NODE, place.node)
        if place.devices:
            numbers = ",".join(map(str, place.devices))
            subject = Subject(SubjectKind.GPU, f"{place.node}/{numbers}")
        text = f"the driver reported {' and '.join(said)} to {job}/{name}"
        troubles.append(
            Trouble(
                *(TroubleKind.GPU_ERROR, subject, probability, text, action, tuple(evidence)),
                *(job, attempt, place.node),
                avoidable=not by_program,
            )
        )
    return troubles


def idle_gpus(windows: WorkerWindows, run: WatchedRun, now: float, pace: float) -> Trouble | None:
    """A run that holds GPUs and has not used one of them for long. `pace` scales how long healthy
    jobs take to start."""
    view = run.view
    holding = {name: place for name, place in view.workers.items() if place.devices}
    since, seen = view.started_at, 0
    shown: list[Evidence] = []
    for name in holding:
        slot = windows.slots.get((view.job, view.attempt, name))
        if slot is None:
            return None
        at, gpu = windows.recent_of(slot, "at", "gpu_util_pct")
        known = np.isfinite(gpu)
        if known.sum() < 5:
            return None  # the driver could not be asked, or not for long
        busy = known & (gpu > _IDLE_PCT)
        if busy.any():
            since = max(since, float(at[busy][-1]))
        elif len(at) == windows.LENGTH:
            counts, (whole_at, whole_gpu) = windows.whole("at", "gpu_util_pct")
            before = whole_gpu[slot, : counts[slot]] > _IDLE_PCT
            if before.any():
                since = max(since, float(whole_at[slot, : counts[slot]][before][-1]))
        seen += int(known.sum())
        if len(shown) < 4:
            pairs = tuple(at[known][-16:]), tuple(gpu[known][-16:])
            shown.append(Evidence("gpu_util_pct", f"GPUs of {name}", *pairs))
    idle_s, usual_s = now - since, _STARTS_S * pace
    if not holding or idle_s <= usual_s:
        return None
    probability = posterior(_IDLE_PRIOR, (usual_s / idle_s) ** 2)
    count = sum(len(place.devices) for place in holding.values())
    word = "GPU" if count == 1 else "GPUs"
    return Trouble(
        TroubleKind.GPU_IDLE,
        Subject(SubjectKind.JOB, view.job),
        probability,
        f"it holds {count} {word} and has used none for {idle_s:.0f} s",
        f"ask its owner, or stop it: presage stop {view.job}",
        tuple(shown),
        view.job,
        view.attempt,
    )
