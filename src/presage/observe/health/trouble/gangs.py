"""Stragglers: a worker that is slower than the others of its gang, and whether its node or its
share of the work is to blame. Whoever keeps the attempts of before hands them in."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from presage.observe.health.trouble.findings import (
    Evidence,
    Subject,
    SubjectKind,
    Trouble,
    TroubleKind,
)
from presage.observe.health.trouble.formulas import student_cdf, who_is_slow
from presage.observe.health.trouble.runs import WatchedRun
from presage.observe.health.trouble.windows import Floats, WorkerWindows

__all__ = ["Moves", "straggler"]

_BLOCKS = 5
_SLOW = 0.85
"""A worker that does more than this share of what the others do is slow enough for nobody."""
_LEAST_SPAN_S = 15.0
_PRIOR_ODDS = 0.02

Moves = Sequence[tuple[Sequence[tuple[int, str]], int]]
"""Attempts: the places (index, node) of the workers, and which of them was slow."""


def straggler(windows: WorkerWindows, run: WatchedRun, moves: Moves = ()) -> Trouble | None:
    """The slowest worker, if it is slower than the others steadily. `moves` are the attempts
    before this one in which the job had a straggler."""
    workers = run.view.workers
    if len(workers) < 2:
        return None
    rates = {}
    for name in workers:
        slot = windows.slots.get((run.view.job, run.view.attempt, name))
        if slot is not None:
            at, step = windows.recent_of(slot, "at", "step")
            blocks = _rates(at, step)
            if blocks is not None:
                rates[name] = blocks
    if len(rates) < 2 or len(rates) < len(workers) / 2:
        return None
    slow = min(rates, key=lambda name: float(rates[name].mean()))
    others = [float(rate.mean()) for name, rate in rates.items() if name != slow]
    usual = median(others)
    share = float(rates[slow].mean()) / usual if usual > 0 else 1.0
    if share > _SLOW:
        return None
    behind = np.array([1 - float(rates[slow][k]) / usual for k in range(_BLOCKS)])
    spread = max(float(behind.std(ddof=1)), 0.02)
    t = (float(behind.mean()) - (1 - _SLOW) / 2) / (spread / _BLOCKS**0.5)
    chance = (1 - student_cdf(t, _BLOCKS - 1)) * len(rates)
    probability = 1 / (1 + chance / _PRIOR_ODDS)
    return _finding(run, slow, (share, rates), moves, probability)


def _rates(at: Floats, step: Floats) -> Floats | None:
    """Steps a second in five blocks of the window."""
    known = np.isfinite(step)
    at, step = at[known], step[known]
    if len(at) < 2 * _BLOCKS or at[-1] - at[0] < _LEAST_SPAN_S or step[-1] <= step[0]:
        return None
    edges = np.linspace(at[0], at[-1], _BLOCKS + 1)
    return np.asarray(np.diff(np.interp(edges, at, step)) / np.diff(edges))


def _finding(
    run: WatchedRun,
    slow: str,
    measured: tuple[float, dict[str, Floats]],
    moves: Moves,
    probability: float,
) -> Trouble:
    share, rates = measured
    view = run.view
    names = list(view.workers)
    places = [(view.workers[name].index, view.workers[name].node) for name in names]
    on_node, node = who_is_slow([*moves, (places, names.index(slow))])
    here = view.workers[slow].node
    blame = "whether its node or its share of the work is to blame shows when it moves"
    subject = Subject(SubjectKind.WORKER, f"{view.job}/{slow}")
    action = f"have it start elsewhere: presage halt {view.job}, then presage resume {view.job}"
    if on_node >= 0.9:
        blame = f"over {len(moves) + 1} attempts its node {node} is to blame ({on_node:.0%})"
        subject = Subject(SubjectKind.NODE, node)
        action = f"look at the node, or drain it: presage drain {node}"
    elif on_node <= 0.1:
        blame = f"over {len(moves) + 1} attempts its share of the work is ({1 - on_node:.0%})"
        action = "even out the shares of the data"
    evidence = [
        Evidence("step", f"steps a second of {name}", (), tuple(map(float, rate.round(4))))
        for name, rate in list(rates.items())[:8]
    ]
    moved = [Evidence("attempts", f"slow: {ps[k][0]} on {ps[k][1]}") for ps, k in moves]
    return Trouble(
        TroubleKind.STRAGGLER,
        subject,
        probability,
        f"{slow} on {here} does {share:.0%} of the steps that the others do; {blame}",
        action,
        (*evidence, *moved),
        view.job,
        view.attempt,
        here,
        avoidable=on_node > 0.1,
    )
