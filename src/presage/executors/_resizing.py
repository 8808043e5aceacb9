"""A change of a run's workers, as its guardian carries it out. Standard library only.

First the training is held: every rank stops at the same step, and a checkpoint is saved there
(`presage.job`). Then, where each worker is a torchrun agent, those that leave are dismissed, new
ones join, and the agents that stay start their workers anew. Elsewhere, and whenever that does not
work out, all workers are stopped as for any stop, and the new set is started.

Nothing is waited for here: `advance` is called again and again by the guardian's loop.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from presage.executors._processes import descendants
from presage.executors._report import Reporter
from presage.executors._worker import WorkerProcess

__all__ = ["Crew", "Resizing", "name_members"]

_BOOT_S = 120.0
"""How long new agents may take to come up; the training goes on meanwhile."""

Course = Generator[None, None, bool]


class Crew(Protocol):
    """What a change needs of the guardian."""

    plan: dict[str, Any]
    report: Reporter
    workers: list[WorkerProcess]

    def make(self, plans: list[dict[str, Any]]) -> list[WorkerProcess]:
        """Workers that are not started yet."""
        ...

    def begin(self, workers: list[WorkerProcess]) -> None:
        """Start all of these or none; raises StartError."""
        ...

    def remove_containers(self, workers: list[WorkerProcess]) -> None:
        """Free the names of containers."""
        ...


def name_members(plan: dict[str, Any], number: int, workers: list[WorkerProcess]) -> None:
    """Tell torchrun agents who takes part from now on, and where they meet."""
    place = Path(plan["progress_dir"])
    names = [worker.name for worker in workers]
    body = {"number": number, "members": names, "store": f"store-{time.monotonic_ns()}"}
    (place / "members.new").write_text(json.dumps(body))
    (place / "members.new").replace(place / "members.json")


class Resizing:
    """One change, from the request until nobody is left who has to go."""

    def __init__(self, crew: Crew, number: int, plans: list[dict[str, Any]]) -> None:
        self.number = number
        self.others: list[WorkerProcess] = []
        """Workers that are not in yet, or not gone yet."""
        self.changing = False
        """Whether workers end and start because they were told to."""
        self._crew = crew
        self._plans = plans
        self._place = Path(crew.plan["progress_dir"])
        self._grace_s = max(float(crew.plan["grace_s"]), 0.001)
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
        (self._place / "resize.json").unlink(missing_ok=True)
        here = {id(worker) for worker in self._crew.workers}
        self._crew.workers += [worker for worker in self.others if id(worker) not in here]
        self.others = []

    # -- the course of a change -----------------------------------------------------------------

    def _change(self) -> Course:
        before = list(self._crew.workers)
        self._note([worker.plan for worker in before] + self._plans)
        done = False
        if self._can_be_live():
            done = yield from self._join_and_leave()
        if not done:
            yield from self._restart()
        self._note(self._plans)
        return True

    def _can_be_live(self) -> bool:
        """Whether agents that stay can stay as they are, and their program can be held."""
        have = {worker.name: worker.plan["is"] for worker in self._crew.workers}
        wanted = {plan["name"]: plan["is"] for plan in self._plans}
        same = have.keys() & wanted.keys()
        return (
            self._crew.plan["live"]
            and self._listens()
            and bool(same)
            and all(have[name] == wanted[name] for name in same)
        )

    def _join_and_leave(self) -> Course:
        """Let agents come and go; False if that does not work out."""
        crew = self._crew
        have = {worker.name: worker for worker in crew.workers}
        new = crew.make([plan for plan in self._plans if plan["name"] not in have])
        self.others = list(new)
        self._start(new)
        needed = crew.workers + new
        if not (yield from self._until(self._ready, _BOOT_S, needed)):
            return False
        if not (yield from self._hold(needed)):
            return False
        everybody = have | {worker.name: worker for worker in new}
        staying = [everybody[plan["name"]] for plan in self._plans]
        leaving = [worker for worker in crew.workers if worker not in staying]
        crew.workers, self.others, self.changing = staying, leaving, True
        name_members(crew.plan, self.number, staying)
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
        crew = self._crew
        if self._held is None and self._listens():
            yield from self._hold(crew.workers)
        while any(worker.ended for worker in crew.workers) and not self.changing:
            yield  # the job is coming to its end: it keeps the workers that it has
        leaving = crew.workers + self.others
        crew.workers, self.others, self.changing = [], leaving, True
        for worker in leaving:
            worker.ask_to_stop()

        def gone() -> bool:
            for worker in leaving:
                worker.urge()
            return all(worker.gone for worker in leaving)

        yield from self._until(gone, self._grace_s, [])
        while not gone() or descendants(os.getpid()):
            for pid in descendants(os.getpid()):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            yield
        crew.remove_containers(leaving)
        for worker in leaving:
            if worker.group:
                worker.group.remove()
        crew.workers, self.others = crew.make(self._plans), []
        if crew.plan["agents"]:
            name_members(crew.plan, self.number, crew.workers)
        self._start(crew.workers)
        self.changing = False
        return True

    def _start(self, workers: list[WorkerProcess]) -> None:
        for worker in workers:
            for what in ("ready", "joined"):  # an earlier worker of this name may have left word
                (self._place / f"{what}-{worker.name}").unlink(missing_ok=True)
        if workers:
            self._crew.begin(workers)

    # -- holding the training -------------------------------------------------------------------

    def _listens(self) -> bool:
        """Whether the program calls `presage.job.step`, and so hears of a resize."""
        return (self._place / "stepping").exists()

    def _hold(self, needed: list[WorkerProcess]) -> Course:
        """Have every rank stop at one step, with a checkpoint; False if they do not."""
        ranks = range(len(self._crew.workers))
        order, new = self._place / "resize.json", self._place / "resize.new"
        new.write_text(json.dumps({"number": self.number, "workers": len(self._plans)}))
        new.replace(order)

        def held() -> bool:
            return all(self._read(f"held-{rank}") == self.number for rank in ranks)

        self._held = yield from self._until(held, self._grace_s, needed)
        order.unlink(missing_ok=True)
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
        return all(self._read(f"ready-{worker.name}") is not None for worker in self.others)

    def _joined(self) -> bool:
        """Whether all agents take part in this change."""
        names = [worker.name for worker in self._crew.workers]
        return all(self._read(f"joined-{name}") == self.number for name in names)

    def _read(self, name: str) -> int | None:
        try:
            return int(json.loads((self._place / name).read_bytes())["number"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _note(self, plans: list[dict[str, Any]]) -> None:
        """Keep the plan true, for an executor that has to clean up after the guardian."""
        plan = self._crew.plan
        plan["workers"] = list({entry["name"]: entry for entry in plans}.values())
        run = Path(plan["run"])
        with suppress(OSError):
            (run / "plan.new").write_text(json.dumps(plan))
            (run / "plan.new").replace(run / "plan.json")
