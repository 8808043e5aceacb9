"""Trouble around a worker: packets that get lost, a clock that is wrong, others on its cores."""

from __future__ import annotations

import numpy as np

from presage.observe.health.trouble.findings import (
    Evidence,
    Subject,
    SubjectKind,
    Trouble,
    TroubleKind,
)
from presage.observe.health.trouble.formulas import binomial_tail, posterior
from presage.observe.health.trouble.runs import WatchedRun, WorkerPlace
from presage.observe.health.trouble.windows import Floats, WorkerWindows

__all__ = ["crowded_workers", "lossy_networks", "wrong_clocks"]

_LOST = 0.01
"""Of its segments, a network that is well sends so many again at most."""
_NETWORK_PRIOR = 0.001
_LEAST_RESENT = 5
_LEAST_LOSS = 0.03
_BEHIND_S, _AHEAD_S = 30.0, 2.0
_ARRIVALS = 6
_CROWDED_SAMPLES = 12
_WAITS = 0.2
"""Of the time in which it could run, a worker that is crowded waits for a core for so long."""
_GIVEN = 0.85
"""It has less than this share of the cores it was given."""


def lossy_networks(windows: WorkerWindows, runs: dict[str, WatchedRun]) -> list[Trouble]:
    """Network namespaces in which segments are sent again far too often."""
    if not len(windows):
        return []
    at, sent, resent = windows.recent("at", "tcp_sent", "tcp_resent", last=24)
    with np.errstate(invalid="ignore"):
        total = np.fmax.reduce(sent, axis=1) - np.fmin.reduce(sent, axis=1)
        again = np.fmax.reduce(resent, axis=1) - np.fmin.reduce(resent, axis=1)
        odd = (again >= _LEAST_RESENT) & (again >= _LEAST_LOSS * (total + again))
    by_network: dict[tuple[str, float], Trouble] = {}
    alike: dict[tuple[str, float], int] = {}
    for (job, attempt, name), slot in windows.slots.items():
        run = runs.get(job)
        if not odd[slot] or run is None or name not in run.view.workers:
            continue
        node = run.view.workers[name].node
        # Workers of one namespace read the same counters.
        key = node, float(sent[slot, -1]) // max(1.0, 0.2 * float(sent[slot, -1]))
        alike[key] = alike.get(key, 0) + 1
        lost, of = int(again[slot]), int(total[slot] + again[slot])
        probability = posterior(_NETWORK_PRIOR, binomial_tail(lost, of, _LOST))
        shared = alike[key] > 1
        subject = Subject(SubjectKind.WORKER, f"{job}/{name}")
        if shared:
            subject = Subject(SubjectKind.NODE, node)
        text = f"{lost} of {of} TCP segments of {job}/{name} were sent again ({lost / of:.0%})"
        evidence = Evidence("tcp_resent", "sent again", _tuple(at[slot]), _tuple(resent[slot]))
        action = f"look at the link of {node}: ip -s link, ethtool -S; drain it if it stays so"
        kind = TroubleKind.NETWORK
        by_network[key] = Trouble(
            *(kind, subject, probability, text, action, (evidence,), job, attempt, node),
            avoidable=True,
        )
    return list(by_network.values())


def wrong_clocks(windows: WorkerWindows, runs: dict[str, WatchedRun]) -> list[Trouble]:
    """Nodes whose rows carry times that cannot be: from the future, or always late."""
    if not len(windows):
        return []
    at, seen = windows.recent("at", "seen", last=2 * _ARRIVALS)
    by_node: dict[str, Trouble] = {}
    for (job, attempt, name), slot in windows.slots.items():
        run = runs.get(job)
        lags = (seen[slot] - at[slot])[np.isfinite(seen[slot])][-_ARRIVALS:]
        if run is None or len(lags) < _ARRIVALS or name not in run.view.workers:
            continue
        ahead, behind = float(lags.max()), float(lags.min())
        if ahead > -_AHEAD_S and behind < _BEHIND_S:
            continue
        node = run.view.workers[name].node
        off = f"{-ahead:.0f} s ahead" if ahead <= -_AHEAD_S else f"{behind:.0f} s behind"
        evidence = Evidence("seen - at", "seconds from a sample to its arrival", (), _tuple(lags))
        by_node[node] = Trouble(
            TroubleKind.CLOCK,
            Subject(SubjectKind.NODE, node),
            0.97,
            f"its clock is {off}, by the last {len(lags)} samples of {job}/{name}",
            f"look at the time service of {node}: chronyc tracking",
            (evidence,),
            job,
            attempt,
            node,
        )
    return list(by_node.values())


def crowded_workers(windows: WorkerWindows, runs: dict[str, WatchedRun]) -> list[Trouble]:
    """Workers that wait for cores which they were given, and get less of them."""
    if not len(windows):
        return []
    at, cpu, wait = windows.recent("at", "cpu_s", "wait_s", last=_CROWDED_SAMPLES + 1)
    used, waited = np.diff(cpu, axis=1), np.diff(wait, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = waited / (used + waited)
        odd = (share >= _WAITS).sum(axis=1) >= 0.8 * _CROWDED_SAMPLES
    troubles = []
    for (job, attempt, name), slot in windows.slots.items():
        run = runs.get(job)
        if not odd[slot] or run is None or name not in run.view.workers:
            continue
        finding = _crowded(
            (job, attempt, name), run.view.workers[name], at[slot], used[slot], waited[slot]
        )
        if finding is not None:
            troubles.append(finding)
    return troubles


def _crowded(
    about: tuple[str, int, str], place: WorkerPlace, at: Floats, used: Floats, waited: Floats
) -> Trouble | None:
    job, attempt, name = about
    span_s = float(at[-1] - at[0])
    cores, share = float(used.sum()) / span_s, float(waited.sum() / (used + waited).sum())
    if not place.cores or cores > _GIVEN * place.cores or cores < 0.05 * place.cores:
        return None  # it has what it was given, and its own threads wait; or it hardly runs
    # One sample in five may wait for a core by chance; those of a window depend on each other.
    spells = int((waited / (used + waited) >= _WAITS).sum()) // 3
    probability = posterior(0.1, binomial_tail(spells, _CROWDED_SAMPLES // 3, 0.2))
    text = (
        f"it waits for a core {share:.0%} of the time and has {cores:.1f} of the "
        f"{place.cores:g} cores it was given: somebody else uses them"
    )
    evidence = Evidence("wait_s", "seconds of waiting for a core", _tuple(at[1:]), _tuple(waited))
    action = f"see who runs on {place.node}: presage nodes; top"
    subject = Subject(SubjectKind.WORKER, f"{job}/{name}")
    return Trouble(
        *(TroubleKind.CROWDED, subject, probability, text, action, (evidence,)),
        *(job, attempt, place.node),
        avoidable=True,
    )


def _tuple(values: Floats) -> tuple[float, ...]:
    return tuple(round(float(v), 3) for v in np.nan_to_num(values)[-16:])
