"""A guarded policy in a simulated cluster: judged every so often in simulated time, by what its
journal says and by nothing that only the simulator knows.

It stands between the simulator and `Trial`, and keeps count for the report; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import process_time

from presage.core.guard import GuardedPolicy, trusted
from presage.core.ports import Predictor, Store
from presage.core.state import State
from presage.model.event import Decision, Event, Fact
from presage.sim.trial import Trial
from presage.sim.world import World, WorldRules

__all__ = ["Guarding"]


class Guarding:
    """A journal that the trial of a policy listens to."""

    def __init__(
        self,
        policy: GuardedPolicy,
        journal: Store,
        predict: Predictor | None,
        estimates_s: dict[str, float] | None,
        rules: WorldRules,
        seed: int,
    ) -> None:
        """`predict` and `estimates_s` are what policies know of jobs, as in `Trial`."""
        self._policy, self._journal, self._estimates_s = policy, journal, estimates_s
        quiet = replace(rules, outages=(), node_mtbf_s=0.0)  # nobody foresees those
        self.trial = Trial(
            policy, seed=seed, predict=lambda: predict, estimates_s=estimates_s, rules=quiet
        )
        self.switches: list[tuple[float, bool, str]] = []
        """When, whether the candidate decides from then on, and why."""
        self.cpu_s = 0.0
        self._trusted_s = self._all_s = self._last = 0.0

    def append(
        self, now: float, facts: Sequence[Fact], decisions: Sequence[Decision], *, lease: int = 0
    ) -> None:
        """Write a step down, and hear of it."""
        self._journal.append(now, facts, decisions, lease=lease)
        self.trial.heard(now, *facts, *decisions)

    def read(self, since: int = 0) -> Iterable[tuple[float, Event]]:
        """The journal."""
        return self._journal.read(since)

    def due_at(self, now: float, state: State) -> float:
        """When it wants to look, if that is before `now`."""
        return min(now, max(self.trial.due, state.now)) if state.jobs else now

    def look(self, now: float, state: State, world: World) -> list[Fact]:
        """Judge, if it is time."""
        self._all_s += now - self._last
        self._trusted_s += (now - self._last) * trusted(state)
        self._last = now
        if not state.jobs or not self.trial.is_due(now, len(state.pending)):
            return []
        if self._estimates_s is not None:
            for name, task in world.tasks.items():
                if task.estimate_s is not None:
                    self._estimates_s[name] = task.estimate_s
        began = process_time()
        fact = self.trial.look(now, state)
        self.cpu_s += process_time() - began
        if fact is None:
            return []
        self.switches.append((now, fact.trusted, fact.text))
        return [fact]

    def remarks(self) -> list[str]:
        """How it went, for whoever reads the result."""
        candidate, fallback = self._policy.names
        share = self._trusted_s / self._all_s if self._all_s else 0.0
        count = len(self.switches)
        said = [
            f"{candidate} decided {share:.0%} of the time, {fallback} else; {self.trial.looks:,} "
            f"looks ahead took {self.cpu_s:.1f} s of CPU time, {count} judgement"
            f"{'s' if count != 1 else ''} changed something"
        ]
        if self.switches:
            at, _, text = self.switches[-1]
            said.append(f"the last one, after {at / 3600:.1f} h: {text}")
        return said
