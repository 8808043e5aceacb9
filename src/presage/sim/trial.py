"""Whether a guarded policy may decide: the present run ahead under it and under its fallback.

Both get the same draws: how long each job still runs, who comes later and for how long. What is
compared is the time that jobs spend in the cluster until they are done, of all that are known or
drawn; a job that does not end well before the end of the run ahead counts up to there. The
candidate is trusted while its mean is foreseen to be at most `margin` above the fallback's, two
standard errors of the paired draws included, and its p99 at most `margin_p99`.

Beside it stands what the candidate did while it decided. At each look, the time since the look
before is lived through again under the fallback, with the jobs that really came and the run times
that are known by now, and both go on under the fallback; the difference is what the candidate
cost. More than `harm` of the time that jobs spent in the cluster in the last seven days, and it
is not trusted.

No clock, no thread, no journal: the caller says what happened and what the time is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import TypeAlias

import numpy as np

from presage.core.guard import GuardedPolicy, judged
from presage.core.ports import Policy, Predictor
from presage.core.state import State
from presage.model.event import Event, JobSubmitted, PolicyJudged
from presage.model.job import JobState
from presage.sim.ahead import Rollout, TimeBox, coming_jobs, even_nodes
from presage.sim.history import DAY_S
from presage.sim.past import RunLearner
from presage.sim.world import WorldRules

__all__ = ["Trial"]

_LEAST_RUNS = 20
"""Ended jobs from which on something can be foreseen."""
_LEAST_PAIRS = 3
_SURE = 2.0
"""Standard errors on top of the mean."""
_HARM_S = 7 * DAY_S
_SOONER = 6
"""A look may come so many times as early when more jobs wait than was foreseen."""
_GRAIN = 0.01
_SUCCEEDED = JobState.SUCCEEDED

Coming: TypeAlias = Sequence[tuple[float, JobSubmitted]]


@dataclass(frozen=True, slots=True)
class _Draw:
    """What is the same for all runs of one pair."""

    left_s: dict[str, float]
    """Of jobs that are known."""
    coming: Coming
    coming_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Lived:
    """What became of jobs in one run ahead."""

    spent_s: float
    """That they spent in the cluster, from its beginning on."""
    p99_s: float
    """Of their times since submission."""
    most_waiting: int


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where the candidate began to decide for a while."""

    now: float
    state: State


class Trial:
    """Judges one guarded policy, again and again."""

    def __init__(
        self,
        policy: GuardedPolicy,
        *,
        seed: int = 0,
        predict: Callable[[], Predictor | None] = lambda: None,
        estimates_s: Mapping[str, float] | None = None,
        rules: WorldRules | None = None,
        time_box: Callable[[], TimeBox | None] = lambda: None,
    ) -> None:
        """`predict` is what policies know of jobs; without it, what was drawn, or `estimates_s`.
        `rules` are those of the world that is run ahead; `time_box` bounds the work of a look."""
        self.policy, self.seed = policy, seed
        self.learner = RunLearner()
        self.due = -inf
        """When to look next."""
        self.alarm: float = inf
        """More jobs that wait than this, and a look is due soon."""
        self.looks = 0
        self.said: tuple[float, PolicyJudged] | None = None
        """The latest judgement, and when it was made; most of them change nothing."""
        self._predict, self._estimates_s, self._rules = predict, estimates_s, rules
        self._time_box = time_box
        self._began: float | None = None
        self._looked = -inf
        self._mark: _Mark | None = None
        self._since: list[tuple[float, JobSubmitted]] = []
        """Who was submitted since the mark."""
        self._books: deque[tuple[float, float, float]] = deque()
        """When, seconds that the candidate cost, and those that jobs spent in the cluster."""

    # -- what happened ----------------------------------------------------------------------------

    def heard(self, now: float, *events: Event) -> None:
        """The next events of the journal."""
        if self._began is None:
            self._began = now
        self.learner.heard(now, *events)
        if self._mark is not None:
            self._since += ((now, one) for one in events if isinstance(one, JobSubmitted))

    def is_due(self, now: float, waiting: int) -> bool:
        """Whether to look now, with so many jobs that wait."""
        if waiting > self.alarm:
            return now >= min(self.due, self._looked + self.policy.rules.every_s / _SOONER)
        return now >= self.due

    # -- a look -----------------------------------------------------------------------------------

    def look(self, now: float, state: State) -> PolicyJudged | None:
        """Judge, given the present state, which is left as it is. None where nothing is different:
        who decides goes on."""
        (candidate, fallback), rules = self.policy.names, self.policy.rules
        self.looks += 1
        draws = self._draws(now, state)
        mine, theirs = self._pairs(now, state, draws)
        self._keep_books(now, state, draws[: len(theirs)], theirs)
        trusts, text = self._verdict(mine, theirs)
        digest = state.rules.digest if state.rules is not None else ""
        fact = PolicyJudged(candidate, fallback, trusts, text, digest)
        before, self.said = judged(state), (now, fact)
        self.due, self._looked = now + rules.every_s, now
        most = max((one.most_waiting for one in (*mine, *theirs)), default=0)
        self.alarm = 10 + 1.5 * most
        self.learner.ended.clear()
        self._since = []
        self._mark = _Mark(now, state.copy()) if trusts else None
        return fact if before is None or before.trusted != trusts else None

    def _draws(self, now: float, state: State) -> list[_Draw]:
        """What may come."""
        history, began = self.learner.history, self._began
        if len(history) < _LEAST_RUNS or began is None:
            return []
        jobs = list(state.jobs.values())
        count, seed = self.policy.rules.draws, self.seed + self.looks
        left = history.sample(jobs, now, count, np.random.default_rng(seed))
        names = [job.id for job in jobs]
        draws = []
        for number, column in enumerate(left.T):
            coming, coming_s = coming_jobs(
                lambda at, rng: self.learner.arrivals.draw(at, began, rng),
                history,
                now,
                seed,
                number,
            )
            left_s = dict(zip(names, column.tolist(), strict=True))
            draws.append(_Draw(left_s, coming, coming_s))
        return draws

    def _pairs(
        self, now: float, state: State, draws: Sequence[_Draw]
    ) -> tuple[list[_Lived], list[_Lived]]:
        """Each draw under the candidate and under the fallback, as far as there is time."""
        box, until = self._time_box(), now + self.policy.rules.ahead_s
        mine: list[_Lived] = []
        theirs: list[_Lived] = []
        for draw in draws:
            if box is not None and not box.begin():
                break
            pair = [
                self._run(now, state, make, draw, until, box)
                for make in (self.policy.candidate, self.policy.fallback)
            ]
            if box is not None and not box.goes_on():
                break  # one of them was cut short
            mine.append(pair[0])
            theirs.append(pair[1])
        return mine, theirs

    def _run(
        self,
        now: float,
        state: State,
        make: Callable[[], Policy],
        draw: _Draw,
        until: float,
        box: TimeBox | None = None,
    ) -> _Lived:
        run = Rollout(
            state.copy(), even_nodes(state), make(), dict(draw.left_s), self._estimates_s
        )
        run.await_more(draw.coming, draw.coming_s)
        submitted = {job.id: job.submitted_at for job in state.jobs.values()}
        submitted |= {fact.spec.id: at for at, fact in draw.coming if at <= until}
        ends: dict[str, float] = {}
        most, soon = 0, now + self.policy.rules.every_s
        steps = run.steps(now, (), self._predict(), self._rules, until, box, _GRAIN)
        for at, _ in steps:
            if at <= soon:
                most = max(most, len(run.state.pending))
            for job in run.state.ended:
                if job.state is _SUCCEEDED:
                    ends[job.id] = at
            if len(ends) == len(submitted):
                break
        rows = np.array([(ends.get(one, until), at) for one, at in submitted.items()])
        if not rows.size:
            return _Lived(0.0, 0.0, most)
        spent = rows[:, 0] - np.maximum(rows[:, 1], now)
        return _Lived(float(spent.sum()), float(np.quantile(rows[:, 0] - rows[:, 1], 0.99)), most)

    # -- what it cost -----------------------------------------------------------------------------

    def _keep_books(
        self, now: float, state: State, draws: Sequence[_Draw], after: Sequence[_Lived]
    ) -> None:
        """What the candidate cost since the last look, where it decided."""
        elapsed = now - self._looked if self.looks > 1 else 0.0
        cost = self._cost(now, state, draws, after) if self._mark is not None and draws else 0.0
        self._books.append((now, cost, elapsed * len(state.jobs)))
        while self._books[0][0] < now - _HARM_S:
            self._books.popleft()

    def _cost(
        self, now: float, state: State, draws: Sequence[_Draw], after: Sequence[_Lived]
    ) -> float:
        """Seconds that jobs spend longer in the cluster, since the candidate decided and not the
        fallback: `after` says how long they still do."""
        mark, ended = self._mark, self.learner.ended
        assert mark is not None
        then = mark.now
        since = [one for one in self._since if one[1].spec.id not in mark.state.jobs]
        came = [one for one in since if one[1].spec.id in state.jobs]
        came += [one for one in since if one[1].spec.id in ended]
        came.sort(key=lambda one: one[0])
        new = {fact.spec.id for _, fact in came}
        before = {name: job.ran(then) for name, job in mark.state.jobs.items()}
        done = [name for name in (*before, *new) if name in ended]
        if not mark.state.pending and not new:
            return 0.0  # nobody was there to choose from
        at = {fact.spec.id: when for when, fact in came}
        real = sum(ended[name][0] - max(then, at.get(name, then)) for name in done)
        real += sum(
            now - at.get(name, then) for name in state.jobs if name in before or name in at
        )
        costs = []
        until = now + self.policy.rules.ahead_s
        for draw, rest in zip(draws, after, strict=True):
            left_s = {}
            for name in (*before, *new):
                if name in ended:
                    left_s[name] = max(1.0, ended[name][1] - before.get(name, 0.0))
                elif name in state.jobs:
                    ran = state.jobs[name].ran(now) - before.get(name, 0.0)
                    left_s[name] = max(1.0, ran + draw.left_s[name])
                else:
                    left_s[name] = 1.0  # somebody stopped it: who would have come first is unknown
            early = {name: left_s[name] for name in before}
            late = {name: left_s[name] for name in new} | draw.coming_s
            again = _Draw(early, [*came, *draw.coming], late)
            instead = self._run(then, mark.state, self.policy.fallback, again, until)
            costs.append(real + rest.spent_s - instead.spent_s)
        return float(np.mean(costs))

    # -- words ------------------------------------------------------------------------------------

    def _verdict(self, mine: Sequence[_Lived], theirs: Sequence[_Lived]) -> tuple[bool, str]:
        (candidate, fallback), rules = self.policy.names, self.policy.rules
        cost, spent = (sum(row[k] for row in self._books) for k in (1, 2))
        if cost > rules.harm * spent and cost > 0:
            return False, (
                f"what {candidate} did in the last seven days made jobs take "
                f"{cost / max(spent, 1.0):.1%} longer than {fallback} would have"
            )
        if len(self.learner.history) < _LEAST_RUNS:
            known = len(self.learner.history)
            return False, f"only {known} jobs ended so far: too few to foresee what it would do"
        if len(mine) < min(_LEAST_PAIRS, rules.draws):
            return False, "it could not be foreseen in time what it would do"
        if not any(one.spent_s for one in theirs):
            return False, "there is nothing to foresee: no job is known or expected"
        pairs = [(a.spent_s, max(b.spent_s, 1.0)) for a, b in zip(mine, theirs, strict=True)]
        off = np.array([a / b - 1 for a, b in pairs])
        error = float(np.std(off, ddof=1)) / sqrt(off.size) if off.size > 1 else 0.0
        worse = float(np.mean(off))
        tail = float(
            np.mean([a.p99_s / max(b.p99_s, 1.0) for a, b in zip(mine, theirs, strict=True)]) - 1
        )
        trusts = worse + _SURE * error <= rules.margin and tail <= rules.margin_p99
        text = (
            f"over the next {rules.ahead_s / 3600:g} h jobs are foreseen to take "
            f"{worse:+.1%} ± {_SURE * error:.1%} under {candidate} against {fallback}, "
            f"p99 {tail:+.1%} ({off.size} draws)"
        )
        return trusts, text
