"""A guarded policy: a candidate that decides while it is trusted, and a fallback that does else.

Which of the two is a fact in the journal (`PolicyJudged`), kept by the state; until somebody has
judged, the fallback decides. So a replay and a start after a crash decide the same. Who judges,
and by what, is not known here (`sim.trial` does): nothing is run ahead in this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from presage.core.plan import Plan
from presage.core.ports import CountsHours, Foreknows, HasRemarks, Policy, Predictor
from presage.core.state import State
from presage.model.event import PolicyJudged
from presage.model.job import Job, Reason

__all__ = ["GuardRules", "GuardedPolicy", "judged", "trusted"]


@dataclass(frozen=True, slots=True)
class GuardRules:
    """When a candidate is looked at, and when it is trusted."""

    every_s: float = 3600.0
    """Seconds between two looks."""
    margin: float = 0.01
    """The candidate is trusted while its mean time to completion is foreseen to be at most this
    share above the fallback's, with the uncertainty of the draws on top."""
    margin_p99: float = 0.1
    """The same for the slowest hundredth, without the uncertainty."""
    harm: float = 0.01
    """It is not trusted for a week after what it did is found to have cost more than this share
    of the time that jobs spent in the cluster."""
    draws: int = 8
    """Pairs of runs ahead of one look."""
    ahead_s: float = 86_400.0
    """How far each goes."""


class GuardedPolicy:
    """Decides as the candidate or as the fallback."""

    def __init__(
        self,
        candidate: Callable[[], Policy],
        fallback: Callable[[], Policy],
        names: tuple[str, str],
        rules: GuardRules,
    ) -> None:
        """Makers of both, what they are called, and the rules of who judges."""
        self.candidate, self.fallback, self.names, self.rules = candidate, fallback, names, rules
        self._both = fallback(), candidate()
        self.prefers_estimates = any(
            bool(getattr(one, "prefers_estimates", False)) for one in self._both
        )
        self.needs_history = any(bool(getattr(one, "needs_history", False)) for one in self._both)
        self.counts_hours = any(
            isinstance(one, CountsHours) and one.counts_hours for one in self._both
        )

    def schedule(self, plan: Plan, predict: Predictor) -> None:
        """As who decides now."""
        self._both[trusted(plan.state)].schedule(plan, predict)

    def explain(self, job: Job, plan: Plan, predict: Predictor) -> Reason:
        """In the words of who decides; with why that is not the candidate."""
        decides = trusted(plan.state)
        reason = self._both[decides].explain(job, plan, predict)
        if decides:
            return reason
        return replace(reason, text=f"{reason.text} ({self.status(plan.state)})")

    def status(self, state: State) -> str:
        """Who decides now, and why."""
        verdict = judged(state)
        why = verdict.text if verdict is not None else f"{self.names[0]} was not judged yet"
        return f"{self.names[not trusted(state)]} decides: {why}"

    def never(self, job: Job, plan: Plan, predict: Predictor) -> Reason | None:
        """What the fallback says: a candidate refuses nobody for good."""
        fallback = self._both[0]
        return fallback.never(job, plan, predict) if isinstance(fallback, Foreknows) else None

    def remarks(self, state: State) -> Sequence[str]:
        """Those of both, each once."""
        said = [one.remarks(state) for one in self._both if isinstance(one, HasRemarks)]
        return list(dict.fromkeys(text for texts in said for text in texts))


def judged(state: State) -> PolicyJudged | None:
    """The latest judgement, if it is of the rules that hold."""
    verdict = state.judged
    rules = state.rules.digest if state.rules is not None else ""
    return verdict if verdict is not None and verdict.rules == rules else None


def trusted(state: State) -> bool:
    """Whether the candidate decides."""
    verdict = judged(state)
    return verdict is not None and verdict.trusted
