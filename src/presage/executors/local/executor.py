"""The executor `local`: runs jobs as processes of this machine, whatever nodes were declared.

Each run has a guardian, a detached process that does the work (`node.guardian`). This side starts
guardians, gives them cores, and deals with those that died. ADR 0015 says why.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from socket import socket
from threading import Timer

from presage.executors.node.attach import DOOR
from presage.executors.node.base import Key, RunsExecutor, TimedFacts
from presage.executors.node.frames import connect
from presage.executors.node.limits import delegated_group
from presage.executors.node.messages import LimitOrder, RunPlan, UnixUser
from presage.executors.node.plan import (
    LOG_CAP,
    identity,
    inherited_environment,
    make_plan,
    pick_cores,
    plan_workers,
    share_name,
)
from presage.executors.node.runs import Run, make_run, spawn_guardian
from presage.executors.node.runspec import RunSpec
from presage.executors.node.shares.environment import ShareService
from presage.executors.node.shares.methods import ShareSetup
from presage.executors.node.shares.terms import shares_of
from presage.model.cluster import WHOLE_GPU, Node, Resources, Worker
from presage.model.errors import RunSpecError
from presage.model.event import Fact, Launch, Limit, Resize
from presage.telemetry.nvml import visible_here

__all__ = ["LocalExecutor"]

_STARTING_AT_ONCE = 8
_STARTING_FOR_S = 2.0
_RETRY_S = 0.05


class LocalExecutor(RunsExecutor):
    """Runs jobs on this machine."""

    def __init__(
        self,
        data: Path,
        nodes: Sequence[Node],
        *,
        python: str | Path = sys.executable,
        log_cap: int = LOG_CAP,
        run_as: Callable[[str], UnixUser | None] = lambda owner: None,
        isolated: bool = False,
        mounts: Sequence[str] = (),
        shares: ShareSetup | None = None,
    ) -> None:
        super().__init__(data)
        self._run_as, self._isolated, self._mounts = run_as, isolated, mounts
        self._nodes = tuple(nodes)
        self._python = str(python)
        self._log_cap = log_cap
        self._cgroup = delegated_group()
        self._shares = ShareService(self._layout.shares, sys.executable, shares)
        self._suspects: set[Key] = set()
        """Runs whose guardian may be dead."""
        self._core_load: Counter[int] = Counter()
        self._pidfds: dict[int, tuple[int, Key]] = {}
        self._crowded = False
        """Whether a launch waits because many others are starting."""
        self._alarm: Timer | None = None
        self._adopt_all()

    # -- the port -------------------------------------------------------------------------------

    def nodes(self) -> Sequence[Node]:
        """The nodes that were declared."""
        return self._nodes

    def poll(self, now: float) -> list[Fact]:
        """Facts since the last poll, in the order they happened. Asking again says that those of
        the last poll are safely written down."""
        facts = super().poll(now)
        self._shares.revive()
        if not self._told and (self._suspects or self._crowded):
            self._wake_soon()
        return facts

    def close(self) -> None:
        """Let go; jobs go on."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm.join()
        for fd, (pid, _) in self._pidfds.items():
            _reap(pid)
            os.close(fd)
        self._pidfds.clear()
        self._shares.close(keep=bool(self._runs))
        super().close()

    # -- starting -------------------------------------------------------------------------------

    def _start_waiting(self) -> None:
        """Start what waits, a few at a time: hundreds of processes that start at once would starve
        those that run."""
        now = time.monotonic()
        room = _STARTING_AT_ONCE - sum(
            not run.heard and now - run.spawned_at < _STARTING_FOR_S for run in self._runs.values()
        )
        self._crowded = False
        for key in list(self._waiting):
            if room <= 0:
                self._crowded = True
                return
            if self._start(self._waiting[key]):
                del self._waiting[key]
                room -= 1

    def _has_room(self, spec: RunSpec, launch: Launch) -> bool:
        return self._shares.has_room(spec, launch.workers)

    def _spawn(self, spec: RunSpec, launch: Launch) -> None:
        key = (launch.job, launch.attempt)
        cores: dict[Worker, list[int]] = {}
        load = self._core_load.copy()
        for worker in launch.workers:
            if worker.role < len(spec.roles):
                cores[worker] = pick_cores(spec.roles[worker.role].cpus, load)
                load.update(cores[worker])
        user = self._run_as(spec.owner)
        plan = make_plan(
            self._layout,
            spec,
            launch,
            cores=cores,
            cgroup=self._cgroup,
            log_cap=self._log_cap,
            gpus=visible_here(),
            user=user,
            isolated=self._isolated,
            mounts=self._mounts,
            shares=self._layout.shares,
            share_env=self._share_out(spec, *key, launch.workers, user),
        )
        lock = make_run(self._layout.runs, plan.run, plan)
        if lock is None:
            self._adopt(key)
            return
        run = Run(*key, plan.run)
        try:
            env = inherited_environment(spec, self._python, run.directory, user)
            pid = spawn_guardian(self._python, run, lock, env)
        except OSError:
            run.remove()
            raise
        finally:
            os.close(lock)
        run.spawned_at = time.monotonic()
        run.cores = [core for chosen in cores.values() for core in chosen]
        self._core_load.update(run.cores)
        self._runs[key] = run
        self._watch_guardian(pid, key)

    def _share_out(
        self,
        spec: RunSpec,
        job: str,
        attempt: int,
        workers: Sequence[Worker],
        user: UnixUser | None,
    ) -> dict[str, dict[str, str]]:
        """Open the shares of GPUs that workers ask for; what each needs in its environment."""
        by_worker = {}
        for worker in workers:
            role = spec.roles[worker.role] if worker.role < len(spec.roles) else None
            if role is not None and role.share is not None:
                name = f"{role.name}-{worker.index}"
                share, uid = share_name(job, attempt, name), user.uid if user else None
                by_worker[name] = self._shares.open(share, role, spec, worker.devices, uid)
        return by_worker

    def limit(self, decision: Limit) -> None:
        """Hold the workers of a run to less CPU and memory; its guardian does so within a
        second. What cannot be written now is said again when the limits change."""
        run = self._runs.get((decision.job, decision.attempt))
        if run is not None and not run.over:
            with suppress(OSError):
                limits = decision.limits
                self._limit_shares(run, limits)
                run.leave(LimitOrder(cpu_milli=limits.cpu_milli, memory_mib=limits.memory_mib))

    def _limit_shares(self, run: Run, limits: Resources) -> None:
        if not (limits.gpu_milli or limits.gpu_memory_mib):
            return
        limit = limits.gpu_milli / WHOLE_GPU if limits.gpu_milli else None
        memory = limits.gpu_memory_mib << 20 if limits.gpu_memory_mib else None
        first = self._spec(run.job).roles[0].name
        for name in shares_of(self._layout.shares, share_name(run.job, run.attempt, f"{first}-")):
            self._shares.change(name, limit, memory)

    def attach(self, job: str, attempt: int, worker: str) -> socket:
        """A connection to the guardian of a run; any thread may ask."""
        return connect(self._layout.run(job, attempt), DOOR)

    def _ask_to_resize(self, run: Run, decision: Resize) -> None:
        spec = self._spec(run.job)
        plan = run.find(RunPlan)
        if plan is None:
            raise RunSpecError("the plan of the run cannot be read")
        held = {worker.identity: worker.cpus for worker in plan.workers}
        load = self._core_load.copy()
        load.subtract(run.cores)
        cores: dict[Worker, Sequence[int]] = {}
        for worker in decision.workers:
            kept = held.get(identity(worker))
            cpus = spec.roles[worker.role].cpus
            cores[worker] = pick_cores(cpus, load) if kept is None else kept
            load.update(cores[worker])
        share_env = self._share_out(spec, run.job, run.attempt, decision.workers, plan.user)
        workers = plan_workers(plan.but(share_env=share_env), spec, decision.workers, cores)
        run.ask_to_resize([identity(worker) for worker in decision.workers], workers)
        self._core_load.subtract(run.cores)
        run.cores = [core for chosen in cores.values() for core in chosen]
        self._core_load.update(run.cores)

    def _took_over(self, run: Run) -> None:
        key = (run.job, run.attempt)
        plan = run.find(RunPlan)
        run.cores = [core for worker in plan.workers for core in worker.cpus] if plan else []
        self._core_load.update(run.cores)
        for worker, env in ((plan and plan.share_env) or {}).items():
            self._shares.known(share_name(*key, worker), env)
        pid = run.guardian()
        if pid is not None:
            self._watch_guardian(pid, key)
        else:  # dead, or not yet up
            self._suspects.add(key)

    def _watch_guardian(self, pid: int, key: Key) -> None:
        try:
            fd = os.pidfd_open(pid)
        except OSError:  # gone already, or no more files can be opened
            self._suspects.add(key)
            return
        self._pidfds[fd] = (pid, key)
        self._epoll.register(fd, select.EPOLLIN)

    # -- guardians that may be dead -------------------------------------------------------------

    def _on_ready(self, fd: int) -> None:
        """A guardian has ended."""
        pid, key = self._pidfds.pop(fd)
        self._epoll.unregister(fd)
        os.close(fd)
        _reap(pid)
        if key in self._runs:
            self._suspects.add(key)

    def _look_closer(self, shift: float) -> TimedFacts:
        """What became of runs whose guardian may be dead."""
        return [timed for key in list(self._suspects) for timed in self._examine(key, shift)]

    def _examine(self, key: Key, shift: float) -> TimedFacts:
        """Deal with a run whose guardian may be dead."""
        run = self._runs.get(key)
        if run is None or run.over:
            self._suspects.discard(key)
            return []
        facts: TimedFacts = []
        with run.dead() as dead:
            if dead:
                facts = self._news(run, shift)
                if not run.over:
                    facts += self._news(run, shift, [run.bury()])
        pid = None if dead else run.guardian()
        if pid is not None:
            self._suspects.discard(key)
            self._watch_guardian(pid, key)
        return facts

    # -- ending ---------------------------------------------------------------------------------

    def _forget(self, run: Run) -> None:
        super()._forget(run)
        self._shares.end(share_name(run.job, run.attempt, ""))
        self._core_load.subtract(run.cores)

    def _wake_soon(self) -> None:
        """Something must be tried again that nobody will call about."""
        if self._alarm is None or not self._alarm.is_alive():
            self._alarm = Timer(_RETRY_S, self.wake)
            self._alarm.daemon = True
            self._alarm.start()


def _reap(pid: int) -> None:
    """Take away the remains of a guardian that was our child, if it has ended."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
