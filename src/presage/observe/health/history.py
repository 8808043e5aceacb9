"""What is known of a run when it is submitted: its request, and how runs of its owner and runs
like it had ended until then. Strictly by time: a run that ends after a submission says nothing to
it, nor does one that was cancelled say whether runs fail.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, expm1, log1p
from typing import NamedTuple

import numpy as np

from presage.learn import Floats

__all__ = ["PastRun", "RunRequest", "at_submission", "history_names", "in_words"]

_KEPT = 50
"""Of an owner, or of runs alike, the last so many ends count."""
_PRIOR_RUNS, _PRIOR_RATE = 20.0, 0.25
_OWN_PRIOR = 2.0
_FADES = 0.7
_DAY_H = 24.0
_ABOUT = (
    "rate",
    "ends",
    "last_end",
    "hours_since_end",
    "streak",
    "hours_since_failure",
    "last_length",
    "cancelled",
    "recent_rate",
    "rate_of_the_day",
    "usual_length",
    "end_before_last",
)
_GROUPS = ("owner", "owner_same", "same")
_COMING = (
    "since_last",
    "since_fifth",
    "submitted",
    "alike_share",
    "alike_last",
    "unfinished",
    "within_hour",
    "within_day",
)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What was asked for, as it was known at submission."""

    owner: str
    submitted_s: float
    alike: str
    """Requests with the same text are alike: what was asked for, of what type."""
    numbers: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run and how it ended."""

    request: RunRequest
    started_s: float
    ended_s: float
    failed: bool
    cancelled: bool = False


class _End(NamedTuple):
    failed: bool
    cancelled: bool
    ended_s: float
    length_s: float


@dataclass(slots=True)
class _SeenRuns:
    ends: dict[tuple[str, ...], list[_End]] = field(default_factory=lambda: defaultdict(list))
    counts: dict[tuple[str, ...], int] = field(default_factory=lambda: defaultdict(int))
    failed: int = 0
    judged: int = 0
    coming: dict[str, list[tuple[float, str, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def end(self, run: PastRun) -> None:
        mark = _End(run.failed, run.cancelled, run.ended_s, run.ended_s - run.started_s)
        for key in _keys(run.request):
            self.ends[key].append(mark)
            del self.ends[key][:-_KEPT]
            self.counts[key] += 1
        if not run.cancelled:
            self.failed += run.failed
            self.judged += 1

    @property
    def rate(self) -> float:
        return (self.failed + _PRIOR_RUNS * _PRIOR_RATE) / (self.judged + _PRIOR_RUNS)


def history_names(numbers: Sequence[str]) -> tuple[str, ...]:
    """The columns of `at_submission`, for requests with these numbers."""
    about = [f"{group}_{name}" for group in _GROUPS for name in _ABOUT]
    return (*numbers, *about, *_COMING)


def at_submission(
    requests: Sequence[RunRequest], past: Iterable[PastRun], numbers: Sequence[str]
) -> Floats:
    """A row for each request, in their order. Any run of `past` counts for a request from its end
    on, and as an unfinished one from its own submission."""
    runs = sorted(past, key=lambda run: run.ended_s)
    starts = sorted(runs, key=lambda run: run.request.submitted_s)
    order = sorted(range(len(requests)), key=lambda at: requests[at].submitted_s)
    seen, ended, begun = _SeenRuns(), 0, 0
    rows = np.empty((len(requests), len(history_names(numbers))))
    for at in order:
        now = requests[at].submitted_s
        while ended < len(runs) and runs[ended].ended_s < now:
            seen.end(runs[ended])
            ended += 1
        while begun < len(starts) and starts[begun].request.submitted_s < now:
            run = starts[begun]
            mark = (run.request.submitted_s, run.request.alike, run.ended_s)
            insort(seen.coming[run.request.owner], mark)
            begun += 1
        rows[at] = _row(requests[at], seen, numbers)
    return rows


_WHOSE = {
    "owner_same": "its owner's runs like it",
    "owner": "its owner's runs",
    "same": "all runs like it",
}
_WHEN = {"rate": "", "recent_rate": " lately", "rate_of_the_day": " within a day"}
_ENDED = {0.0: "went well", 1.0: "failed", 2.0: "was cancelled"}


def in_words(feature: str, value: float) -> str:
    """A number of a row, as people say it."""
    group = next((name for name in _WHOSE if feature.startswith(f"{name}_")), "")
    about = feature.removeprefix(f"{group}_")
    if not group or about not in _ABOUT:
        unknown = not np.isfinite(value)
        return f"{feature.replace('_', ' ')}: {'unknown' if unknown else f'{value:.4g}'}"
    whose = _WHOSE[group]
    if about in _WHEN:
        return f"{value:.0%} of {whose} failed{_WHEN[about]}"
    if about == "streak" and value:
        how = "failed" if value > 0 else "went well"
        return f"the last {abs(value):.0f} of {whose} {how}"
    if about in ("last_end", "end_before_last") and value in _ENDED:
        which = "last" if about == "last_end" else "one before the last"
        return f"the {which} of {whose} {_ENDED[value]}"
    if value < 0:
        return f"nothing is known of {whose}"
    if about.startswith("hours_since"):
        what = "failure" if about.endswith("failure") else "end"
        return f"the last {what} of {whose} was {expm1(value):.1f} h ago"
    if about in ("last_length", "usual_length"):
        how = "usually take" if about == "usual_length" else "last took"
        return f"{whose} {how} {expm1(value):.0f} s"
    if about == "cancelled":
        return f"{value:.0%} of {whose} were cancelled"
    return f"{value:.0f} of {whose} are over"


def _keys(request: RunRequest) -> tuple[tuple[str, ...], ...]:
    owner, alike = request.owner, request.alike
    return ("owner", owner), ("owner_same", owner, alike), ("same", alike)


def _row(request: RunRequest, seen: _SeenRuns, numbers: Sequence[str]) -> list[float]:
    row = [float(request.numbers.get(name, np.nan)) for name in numbers]
    prior = seen.rate
    for key in _keys(request):
        known = _about(seen.ends[key], seen.counts[key], request.submitted_s, prior)
        row += known
        prior = known[0] if key[0] == "owner" else seen.rate
    return row + _coming(request, seen.coming[request.owner])


def _about(ends: Sequence[_End], count: int, now: float, prior: float) -> list[float]:
    """How runs ended, the last one last; -1 is what there is nothing of."""
    if not ends:
        return [prior, 0, -1, -1, -1, -1, -1, -1, prior, prior, -1, -1]
    last = ends[-1]
    hours = [(now - one.ended_s) / 3600 for one in ends]
    streak = 0
    for one in reversed(ends):
        if one.failed != last.failed:
            break
        streak += 1
    failures = [h for h, one in zip(hours, ends, strict=True) if one.failed]
    lengths = sorted(log1p(max(one.length_s, 0)) for one in ends)
    return [
        _rate(ends, [1.0] * len(ends), prior),
        count,
        last.failed + 2 * last.cancelled,
        log1p(hours[-1]),
        streak if last.failed else -streak,
        log1p(min(failures)) if failures else -1,
        log1p(max(last.length_s, 0)),
        sum(one.cancelled for one in ends) / len(ends),
        _rate(ends, [_FADES ** (len(ends) - 1 - at) for at in range(len(ends))], prior),
        _rate(ends, [exp(-h / _DAY_H) for h in hours], prior),
        lengths[len(lengths) // 2],
        ends[-2].failed if len(ends) > 1 else -1,
    ]


def _rate(ends: Sequence[_End], weights: Sequence[float], prior: float) -> float:
    pairs = [(w, one.failed) for w, one in zip(weights, ends, strict=True) if not one.cancelled]
    failed = sum(w for w, each in pairs if each)
    return (failed + _OWN_PRIOR * prior) / (sum(w for w, _ in pairs) + _OWN_PRIOR)


def _coming(request: RunRequest, before: Sequence[tuple[float, str, float]]) -> list[float]:
    """How the owner submits."""
    now, last = request.submitted_s, before[-30:]
    return [
        log1p(now - before[-1][0]) if before else -1,
        log1p(now - before[-5][0]) if len(before) > 4 else -1,
        len(before),
        sum(alike == request.alike for _, alike, _ in last) / max(1, len(last)),
        before[-1][1] == request.alike if before else -1,
        sum(ended >= now for _, _, ended in before[-200:]),
        sum(when > now - 3_600 for when, _, _ in last),
        sum(when > now - 86_400 for when, _, _ in last),
    ]
