"""A change of a run's workers, as its guardian carries it out. Standard library only.

First the training is held: every rank stops at the same step, and a checkpoint is saved there
(`presage.job`). Then, where each worker is a torchrun agent, those that leave are dismissed, new
ones join, and the agents that stay start their workers anew. Elsewhere, and whenever that does not
work out, all workers are stopped as for any stop, and the new set is started. Where they use
PyTorch, it has come up before that, beside the one that trains, and only waits for the word.

Nothing is waited for here: `advance` is called again and again by the guardian's loop.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from presage.executors.node import messages as msg
from presage.executors.node import warming, wire
from presage.executors.node.credentials import acting_as
from presage.executors.node.processes import descendants
from presage.executors.node.worker import WorkerProcess

if TYPE_CHECKING:
    from presage.executors.node.guardian import Guardian

__all__ = ["Resizing", "name_members"]

_BOOT_S = 120.0
"""How long new agents may take to come up; the training goes on meanwhile."""

Course = Generator[None, None, bool]


def name_members(plan: msg.RunPlan, number: int, workers: list[WorkerProcess]) -> None:
    """Tell torchrun agents who takes part from now on, and where they meet."""
    names = tuple(worker.name for worker in workers)
    store = f"store-{time.monotonic_ns()}"
    with acting_as(plan.user):
        wire.write(plan.progress_dir, msg.Members(number=number, members=names, store=store))


class Resizing:
    """One change, from the request until nobody is left who has to go."""

    def __init__(self, guardian: Guardian, number: int, plans: Sequence[msg.WorkerPlan]) -> None:
        self.number = number
        self.others: list[WorkerProcess] = []
        """Workers that are not in yet, or not gone yet."""
        self.changing = False
        """Whether workers end and start because they were told to."""
        self._guardian = guardian
        self._plans = plans
        self._place = guardian.plan.progress_dir
        self._grace_s = max(guardian.plan.grace_s, 0.001)
        self._held: bool | None = None
        """Whether the training stands still at a checkpoint; None when it was not asked to."""
        self._course = self._change()

    def advance(self) -> bool:
        """Go on as far as is possible now; says whether all is done. Raises StartError."""
        try:
            next(self._course)
        except StopIteration:
            return True
        return False

    def give_up(self) -> None:
        """The run must end: everybody who is still there is the guardian's again."""
        (self._place / msg.HOLD).unlink(missing_ok=True)
        here = {id(worker) for worker in self._guardian.workers}
        self._guardian.workers += [worker for worker in self.others if id(worker) not in here]
        self.others = []

    # -- the course of a change -----------------------------------------------------------------

    def _change(self) -> Course:
        before = list(self._guardian.workers)
        self._note([*(worker.plan for worker in before), *self._plans])
        done = False
        if self._can_be_live():
            done = yield from self._join_and_leave()
        if not done:
            yield from self._restart()
        self._note(self._plans)
        return True

    def _can_be_live(self) -> bool:
        """Whether agents that stay can stay as they are, and their program can be held."""
        have = {worker.name: worker.plan.identity for worker in self._guardian.workers}
        wanted = {plan.name: plan.identity for plan in self._plans}
        same = have.keys() & wanted.keys()
        return (
            self._guardian.plan.live
            and self._listens()
            and bool(same)
            and all(have[name] == wanted[name] for name in same)
        )

    def _join_and_leave(self) -> Course:
        """Let agents come and go; False if that does not work out."""
        guardian = self._guardian
        have = {worker.name: worker for worker in guardian.workers}
        new = guardian.make([plan for plan in self._plans if plan.name not in have])
        self.others = list(new)
        self._start(new)
        needed = guardian.workers + new
        if not (yield from self._until(self._ready, _BOOT_S, needed)):
            return False
        if not (yield from self._hold(needed)):
            return False
        everybody = have | {worker.name: worker for worker in new}
        staying = [everybody[plan.name] for plan in self._plans]
        leaving = [worker for worker in guardian.workers if worker not in staying]
        guardian.workers, self.others, self.changing = staying, leaving, True
        name_members(guardian.plan, self.number, staying)
        for worker in leaving:
            worker.dismiss()
        if not (yield from self._until(self._joined, self._grace_s, staying)):
            return False
        self.changing = False  # from now on, whoever stays ends for reasons of its own
        yield from self._until(lambda: all(worker.gone for worker in leaving), self._grace_s, [])
        for worker in leaving:
            worker.kill()
        while not all(worker.gone for worker in leaving):
            yield
        for worker in leaving:
            if worker.group:
                worker.group.remove()
        self.others = []
        return True

    def _restart(self) -> Course:
        """Stop everybody, after a checkpoint, and start the new set."""
        guardian = self._guardian
        warm = yield from self._warm_up()
        if self._held is None and self._listens():
            yield from self._hold(guardian.workers)
        while any(worker.ended for worker in guardian.workers) and not self.changing:
            yield  # the job is coming to its end: it keeps the workers that it has
        leaving = guardian.workers + [one for one in self.others if one not in warm]
        guardian.workers, self.others, self.changing = [], leaving + warm, True
        for worker in leaving:
            guardian.ask_to_stop(worker)

        def gone() -> bool:
            for worker in leaving:
                worker.urge()
            return all(worker.gone for worker in leaving)

        yield from self._until(gone, self._grace_s, [])
        while (left := _but(warm)) or not gone():
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            yield
        guardian.remove_containers(leaving)
        for worker in leaving:
            if worker.group:
                worker.group.remove()
        guardian.workers, self.others = warm or guardian.make(self._plans), []
        if guardian.plan.agents:
            name_members(guardian.plan, self.number, guardian.workers)
        if warm:
            with acting_as(guardian.plan.user):
                for worker in warm:
                    warming.begin(worker, self._place, {})
        else:
            self._start(guardian.workers)
        self.changing = False
        return True

    def _warm_up(self) -> Generator[None, None, list[WorkerProcess]]:
        """The new set, which has loaded PyTorch while the present one trains; empty where that is
        not possible or did not work out."""
        guardian, here = self._guardian, self._guardian.workers
        first = self._held is None and self._listens()
        if not (first and warming.can_wait(guardian.plan, self._plans, here)):
            return []
        # Groups of their own: for a while there are two workers of a name.
        plans = [plan.but(cgroup=f"{plan.cgroup}-{self.number}") for plan in self._plans]
        self._note([*(worker.plan for worker in here), *plans])
        with acting_as(guardian.plan.user):
            warming.copy_scripts(self._place)
        self.others = guardian.make([warming.waiting(plan, self._place) for plan in plans])
        guardian.begin(self.others)

        def waiting() -> bool:
            with acting_as(guardian.plan.user):
                return warming.all_waiting(self.others, self._place)

        if (yield from self._until(waiting, warming.WARM_S, here + self.others)):
            self._plans = plans
            return self.others
        for worker in self.others:
            worker.kill()
        return []

    def _start(self, workers: list[WorkerProcess]) -> None:
        for worker in workers:
            for what in ("ready", "joined"):  # an earlier worker of this name may have left word
                (self._place / f"{what}-{worker.name}").unlink(missing_ok=True)
        if workers:
            self._guardian.begin(workers)

    # -- holding the training -------------------------------------------------------------------

    def _listens(self) -> bool:
        """Whether the program calls `presage.job.step`, and so hears of a resize."""
        with acting_as(self._guardian.plan.user):
            return (self._place / msg.STEPPING).exists()

    def _hold(self, needed: list[WorkerProcess]) -> Course:
        """Have every rank stop at one step, with a checkpoint; False if they do not."""
        ranks = range(len(self._guardian.workers))
        with acting_as(self._guardian.plan.user):
            msg.say(self._place, msg.HOLD, msg.Word(number=self.number, workers=len(self._plans)))

        def held() -> bool:
            return all(self._said(f"held-{rank}") == self.number for rank in ranks)

        self._held = yield from self._until(held, self._grace_s, needed)
        (self._place / msg.HOLD).unlink(missing_ok=True)
        return self._held

    # -- helpers --------------------------------------------------------------------------------

    def _until(
        self, happened: Callable[[], bool], within_s: float, needed: list[WorkerProcess]
    ) -> Course:
        """Until something has happened; False when time is up or one who is needed ended."""
        end = time.monotonic() + within_s
        while not happened():
            if time.monotonic() > end or any(worker.ended for worker in needed):
                return False
            yield
        return True

    def _ready(self) -> bool:
        """Whether the agents of new workers are up."""
        return all(self._said(f"ready-{worker.name}") is not None for worker in self.others)

    def _joined(self) -> bool:
        """Whether all agents take part in this change."""
        names = [worker.name for worker in self._guardian.workers]
        return all(self._said(f"joined-{name}") == self.number for name in names)

    def _said(self, name: str) -> int | None:
        with acting_as(self._guardian.plan.user):
            word = msg.hear(self._place, name)
        return None if word is None else word.number

    def _note(self, plans: Sequence[msg.WorkerPlan]) -> None:
        """Keep the plan true, for an executor that has to clean up after the guardian."""
        workers = {(plan.name, plan.cgroup): plan for plan in plans}
        self._guardian.plan = self._guardian.plan.but(workers=tuple(workers.values()))
        with suppress(OSError):
            wire.write(self._guardian.plan.run, self._guardian.plan)


def _but(spared: list[WorkerProcess]) -> list[int]:
    """All processes below this one, but for some workers and what they started."""
    kept = {pid for worker in spared for pid in (worker.pid, *descendants(worker.pid))}
    return [pid for pid in descendants(os.getpid()) if pid not in kept]
