"""The guardian of one run: a process that starts the workers, watches them and cleans up.

It is started by the executor, detached, and outlives the server. It decides nothing about the
cluster. Standard library only, so that it is up in a moment and stays small; see ADR 0015.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from presage.executors.node import messages as msg
from presage.executors.node import wire, workdir
from presage.executors.node.attach import INPUT_ENDED, Door
from presage.executors.node.credentials import acting_as, share_homes
from presage.executors.node.limits import become_subreaper, die_with_parent, oom_kills
from presage.executors.node.processes import descendants, read_stat
from presage.executors.node.report import Reporter
from presage.executors.node.resizing import Resizing, name_members
from presage.executors.node.warming import copy_agent
from presage.executors.node.workdir import Step, fetch, prepare, run_in_child, store_results
from presage.executors.node.worker import (
    StartError,
    WorkerProcess,
    missing_program,
    start_all,
)
from presage.sources import is_local

__all__ = ["Guardian", "free_port", "main"]

LOCK_FD = 3
"""The executor opens and locks the run's lock file, and hands it over under this number."""

_GUARD_S = 0.2
"""How often memory is looked at; twice as often once much of it is used."""
_WATCH_S = 0.1
_CHANGE_S = 0.05
"""How often a change of size is taken further."""
_TICK_S = 1.0
_SAMPLE_S = 5.0
_CLOSE_LOOK_S = 60.0
"""For this long after the start, samples are taken every tick."""
_MIB = 1 << 20


class Guardian:
    """The life of one run, from preparing to the last line of its events."""

    CHECKS_PROGRAMS = False
    """Whether it looks for all programs before it says that it is ready."""

    def __init__(self, run: Path) -> None:
        self.plan = wire.read(msg.RunPlan, run)
        self.run = run
        self.report = Reporter(self.plan)
        self.workers: list[WorkerProcess] = []
        self.verdict: msg.Verdict | None = None
        """How the run ends: set once, by what happened first."""
        self._secrets: dict[str, str] = {}
        self._may_pass = False
        """Whether what went wrong before the start may be right another time."""
        self._terminated = False
        self._recorded: set[int] = set()
        self._resizing: Resizing | None = None
        self._resized = 0
        """Number of the latest change of size that is complete."""
        self._resize_mark: wire.Mark | None = None
        self._limit_mark: wire.Mark | None = None
        self._helper: tuple[int, int | None] = (0, None)
        """PID and wait status of the process that prepares or stores."""
        self._wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(self._wake_read, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self._control = os.open(run / "control", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._port_token = os.urandom(24).hex() if self.plan.ports else ""
        self._door = Door(run, lambda: self.plan, lambda: self.workers, self._port_token)
        for fd in (self._wake_read, self._control, *self._door.fds):
            self._poll.register(fd, select.POLLIN)

    def live(self) -> None:
        """Do all of it. If the guardian itself breaks, nothing is left running."""
        try:
            self._live()
        except Exception as error:
            self._clear()
            self._remove_files()
            text = f"the guardian of the run failed: {type(error).__name__}: {error}"
            self._end(msg.exited("failed", "error", text))
            raise

    def _live(self) -> None:
        failure = self._read_secrets() or self._prepare() or self._missing() or self._start()
        if failure is None:
            self._watch()
        for worker in self.workers:
            if worker.console:
                worker.console.drain()
        self._clear()
        kept = ""
        if failure is None:
            kept = self._keep()
            kept += self._store()
        self.report.progress([worker.plan.progress for worker in self.workers])
        self._remove_files()
        well = msg.exited("succeeded", "exited", "every worker ended well", 0)
        refused = msg.refused(failure or "", may_pass=self._may_pass)
        end = self.verdict or (well if failure is None else refused)
        self._end(end.but(reason=end.reason.but(text=end.reason.text + kept)))

    def _end(self, verdict: msg.Verdict) -> None:
        """Tell how the run ended, without the content of any secret."""
        text = verdict.reason.text
        for value in filter(None, self._secrets.values()):
            text = text.replace(value, "***")
        self.report.end(verdict.but(reason=verdict.reason.but(text=text)))
        self.report.finish()

    # -- before and after -----------------------------------------------------------------------

    def _read_secrets(self) -> str | None:
        """Get the content of the secrets; says what went wrong, or None."""
        for name, path in self.plan.secrets.items():
            try:
                self._secrets[name] = path.read_text().rstrip("\n")
            except (OSError, ValueError):
                return f"there is no secret {path.name!r} that can be read, for {name}"
        return None

    def _prepare(self) -> str | None:
        """Bring in what the run needs; says what went wrong, or None."""
        plan = self.plan
        own = (plan.work, plan.data_dir, plan.progress_dir)
        try:
            if plan.user is not None:
                share_homes(plan)
            for path in (*own, plan.result_dir, plan.checkpoint_dir, plan.log_dir):
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return f"{error.filename} cannot be made: {error.strerror}"
        if not (plan.folder or plan.git or plan.data or plan.engine or plan.checkpoint_link):
            return None
        if plan.engine or plan.git or not all(map(is_local, plan.data.values())):
            self.report.event("StageChanged", stage="downloading")
        failure = self._in_child(prepare) or (self._in_child(fetch) if plan.engine else None)
        if failure is None and plan.user is not None:
            workdir.note_work(plan)  # the directory of the run is not that user's
        return failure

    def _keep(self) -> str:
        """Make what the workers left in the work directory results, however they ended; says in
        words what there is."""
        if not any(map(workdir.has_content, (self.plan.work, self.plan.result_dir))):
            return ""
        from presage.executors.node import keeping

        try:
            return self._kept(keeping.said(keeping.keep(self.plan), self.plan.most_results))
        except (OSError, ValueError) as error:
            return f"; its results could not be kept: {error}"

    def _kept(self, words: str) -> str:
        """What the end of the run says about results."""
        return words

    def _store(self) -> str:
        """Copy the results to where the manifest wants them, if it does; says what went wrong
        where that does not fail the run. A run that makes way for another goes at once: the last
        one of its job stores all."""
        verdict = self.verdict
        stopped = verdict is not None and verdict.outcome == "stopped"
        makes_way = stopped and verdict is not None and verdict.reason.code != "requested"
        if not self.plan.results or makes_way:
            return ""
        self.report.event("StageChanged", stage="storing")
        trouble = self._in_child(store_results, self.plan.grace_s if stopped else None)
        if trouble and self.verdict is None:
            self.verdict = msg.exited("failed", "error", f"not stored: {trouble}")
            return ""
        return f"; not stored: {trouble}" if trouble else ""

    def _in_child(self, step: Step, within_s: float | None = None) -> str | None:
        """Run a step in a process of its own; a stop request ends it, or, in a run that was
        stopped already, the time that has passed. Says what went wrong."""
        errors_read, errors_write = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            die_with_parent(parent)
            run_in_child(step, self.plan, self._secrets, errors_write)
        os.close(errors_write)
        self._helper = (pid, None)
        end = time.monotonic() + (within_s or 0.0)
        while self._helper[1] is None:
            self._wait(_TICK_S)
            self._reap()
            if self._stop_asked() if within_s is None else time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
                self.verdict = self.verdict or self._stopped()
        said = os.read(errors_read, 1 << 16).decode("utf-8", "replace")
        os.close(errors_read)
        self._may_pass = os.waitstatus_to_exitcode(self._helper[1]) == workdir.MAY_PASS
        return said if self._helper[1] == 0 else said or "it was killed"

    def _missing(self) -> str | None:
        """What is wrong with a program of the run, before any is started; None if nothing is."""
        for worker in self.plan.workers:
            env = {**os.environ, **worker.env}
            checked = self.CHECKS_PROGRAMS or worker.agent  # else its start says so, for nothing
            if checked and (wrong := missing_program(worker.argv, env, self.plan.work)):
                return f"{worker.name}: {wrong}"
        return None

    def _start(self) -> str | None:
        """Start every worker or none; says what went wrong, or None."""
        if self._stop_asked():
            self.verdict = self._stopped()
            return "stopped before it started"
        if self.plan.torchrun:
            self.set_env(MASTER_PORT=str(free_port("127.0.0.1")))
        if self.plan.ports:
            self.set_env(PRESAGE_PORT_TOKEN=self._port_token)
        self.workers = self.make(self.plan.workers)
        self._oom_kills = oom_kills()
        if self.plan.agents:
            with acting_as(self.plan.user):
                copy_agent(self.plan.progress_dir)
            name_members(self.plan, 0, self.workers)
        try:
            self.begin(self.workers)
        except StartError as error:
            return str(error)
        self._began = time.monotonic()
        self.report.event("JobStarted", at=time.time())
        return None

    def set_env(self, **variables: str) -> None:
        """Add to the environment of all workers that are to be started."""
        workers = (worker.but(env={**worker.env, **variables}) for worker in self.plan.workers)
        self.plan = self.plan.but(workers=tuple(workers))

    def make(self, plans: Sequence[msg.WorkerPlan]) -> list[WorkerProcess]:
        """Workers that are not started yet."""
        workers = [WorkerProcess(plan, self.plan.cgroup, self.plan.user) for plan in plans]
        with acting_as(self.plan.user):
            for worker in workers:
                worker.continue_from(self.plan.checkpoint_dir)
        return workers

    def begin(self, workers: list[WorkerProcess]) -> None:
        """Start all of these or none; raises StartError."""
        start_all(workers, self.plan.work, self._secrets, self._record)
        for worker in workers:
            if worker.console:
                worker.console.started()
                if worker.console.tty:
                    self._poll.register(worker.console.outer, select.POLLIN)

    def _everybody(self) -> list[WorkerProcess]:
        """The workers, and in a change of size those who come and go."""
        return self.workers + (self._resizing.others if self._resizing else [])

    def _record(self) -> None:
        """Write down the processes of the run, workers first, for an executor that has to clean up
        after us."""
        everybody = self._everybody()
        pids = dict.fromkeys(worker.pid for worker in everybody if worker.pid)
        for worker in everybody:
            pids.update(dict.fromkeys(worker.tree.pids if worker.tree else ()))
        if pids.keys() == self._recorded:
            return
        self._recorded = set(pids)
        starts = tuple((pid, stat.start) for pid in pids if (stat := read_stat(pid)))
        with suppress(OSError):  # a full disk; the mark in their environment is left
            wire.write(self.run, msg.Processes(known=starts))

    # -- while it runs --------------------------------------------------------------------------

    def _watch(self) -> None:
        """Until every worker has ended, by itself or because it had to."""
        watched = any(worker.memory and not worker.group for worker in self.workers)
        limit = self.plan.time_limit_s
        tick = sample = self._began
        deadline = 0.0
        while True:
            self._reap()
            self._copy_consoles()
            now = time.monotonic()
            if deadline == 0.0:
                self._judge(now)
                if self.verdict is None:
                    self._resize()
                if self.verdict is not None or self._only_servers_left():
                    deadline = now + self._ask_all_to_stop()
            if self._all_ended(now, deadline):
                return
            if now >= tick:
                tick = now + _TICK_S
                self._limit()
                look = now >= sample
                if look:
                    close = self._limit_mark or now - self._began < _CLOSE_LOOK_S
                    sample = now + (_TICK_S if close else _SAMPLE_S)
                self._tick(look)
            ahead = tick if deadline == 0.0 else min(tick, deadline)
            if limit is not None and deadline == 0.0:
                ahead = min(ahead, self._began + limit)
            most = _TICK_S
            if self._resizing is not None:
                most = _CHANGE_S
            elif watched:
                most = _WATCH_S if any(worker.near_limit for worker in self.workers) else _GUARD_S
            self._wait(min(most, max(0.0, ahead - time.monotonic())))

    def _copy_consoles(self) -> None:
        """Bring to the logs what workers wrote on terminals, and the end of input to those who
        read pipes."""
        for worker in self.workers:
            if worker.console is None:
                continue
            if worker.console.tty:
                worker.console.copy()
                if worker.console.over:
                    with suppress(KeyError):
                        self._poll.unregister(worker.console.outer)
            elif worker.console.takes_input and (self.run / INPUT_ENDED).exists():
                worker.console.end_input()

    def _judge(self, now: float) -> None:
        """See whether something has happened that ends the run."""
        limit = self.plan.time_limit_s
        told_to = self._resizing is not None and self._resizing.changing
        for worker in self.workers:
            if worker.ended and worker.status != 0 and not told_to:
                self.verdict = self._failure(worker)
                return
            if used := worker.overuse():
                worker.kill()
                text = (
                    f"{worker.name} held {used // _MIB} MiB of memory, "
                    f"more than the {worker.memory // _MIB} MiB it may use"
                )
                self.verdict = msg.exited("out_of_memory", "out_of_memory", text, 137)
                return
        if self._stop_asked():
            if told_to or not all(worker.ended for worker in self.workers):
                self.verdict = self._stopped()
        elif limit is not None and now - self._began >= limit:
            text = f"it ran longer than its time limit of {limit:g} s"
            self.verdict = msg.exited("failed", "time_limit", text)

    def _container_ran_out(self, worker: WorkerProcess) -> bool:
        engine, container = self.plan.engine, worker.container
        if not (engine and container and worker.plan.memory and worker.signal_name == "SIGKILL"):
            return False
        from presage.executors.node import containers

        # Engines do not always hear of it; the kernel counts every process it kills for memory.
        return oom_kills() > self._oom_kills or containers.ran_out(engine, container)

    def _failure(self, worker: WorkerProcess) -> msg.Verdict:
        """Why a worker that ended badly did so."""
        words = worker.last_words()
        said = f": {words}" if words else ""
        code, name = worker.exit_code, worker.signal_name
        if (worker.group and worker.group.ran_out()) or self._container_ran_out(worker):
            most = worker.plan.memory // _MIB
            text = f"{worker.name} needed more than the {most} MiB it may use"
        elif name == "SIGKILL" and oom_kills() > self._oom_kills:
            text = f"{worker.name} was killed by SIGKILL when the machine ran out of memory"
        elif worker.says_out_of_memory():
            text = f"{worker.name} ran out of memory{said}"
        elif name:
            # SIGKILL and SIGTERM come from outside: the job is not to blame and is started again.
            outcome = "lost" if name in ("SIGKILL", "SIGTERM") else "failed"
            return msg.exited(outcome, "error", f"{worker.name} was killed by {name}{said}", code)
        elif worker.found_no_command:
            text = f"{worker.name}: a program of its command is not there{said}"
            return msg.exited("failed", "launch_failed", text, code)
        else:
            text = f"{worker.name} ended with exit code {code}{said}"
            return msg.exited("failed", "error", text, code)
        return msg.exited("out_of_memory", "out_of_memory", text, code)

    def _resize(self) -> None:
        """Take a change of size further, if one was asked for."""
        changed = wire.mark(self.run / msg.ResizeOrder.FILE)
        try:
            if self._resizing is None and changed not in (None, self._resize_mark):
                self._resize_mark = changed
                asked = wire.read(msg.ResizeOrder, self.run)
                if asked.number == self._resized:
                    self.report.event("JobResized", number=self._resized)
                    return
                self.report.event("StageChanged", stage="resizing")
                self._resizing = Resizing(self, asked.number, asked.workers)
            if self._resizing is None or not self._resizing.advance():
                return
        except (StartError, wire.MessageError) as error:
            self.verdict = msg.exited("failed", "error", f"it could not be resized: {error}")
            return
        self._resized = self._resizing.number
        self._resizing = None
        self._record()
        self.report.event("JobResized", number=self._resized)
        self.report.event("StageChanged", stage="")

    def _limit(self) -> None:
        """Hold the workers of the first role to less, if that was asked for."""
        changed = wire.mark(self.run / msg.LimitOrder.FILE)
        if changed in (None, self._limit_mark):
            return
        self._limit_mark = changed
        with suppress(OSError, wire.MessageError):  # it is written again when it matters
            asked = wire.read(msg.LimitOrder, self.run)
            for worker in self.workers:
                if worker.plan.identity[0] == 0 and not worker.ended:
                    worker.hold_to(asked.cpu_milli, asked.memory_mib)

    def _ask_all_to_stop(self) -> float:
        """SIGTERM to every worker; returns the seconds they have."""
        if self._resizing is not None:
            self._resizing.give_up()
            self._resizing = None
        if not all(worker.ended for worker in self.workers):
            self.report.event("StageChanged", stage="stopping")
        for worker in self.workers:
            self.ask_to_stop(worker)
        return max(self.plan.grace_s, 0.001)

    def ask_to_stop(self, worker: WorkerProcess) -> None:
        """SIGTERM to the program of a worker."""
        if self.plan.engine and worker.container:
            from presage.executors.node import containers

            if containers.ask_to_stop(self.plan.engine, worker.container):
                return
        worker.ask_to_stop()

    def _only_servers_left(self) -> bool:
        """Whether those who do the work are done, and the rest only waits for them."""
        left = [worker for worker in self.workers if not worker.ended]
        if not left or not all(worker.plan.serves for worker in left):
            return False
        return len(left) < len(self.workers)

    def _all_ended(self, now: float, deadline: float) -> bool:
        if deadline == 0.0:
            return bool(self.workers) and all(worker.ended for worker in self.workers)
        if now >= deadline:
            for worker in self.workers:
                worker.kill()
        for worker in self.workers:
            worker.urge()
        return not any(worker.alive for worker in self.workers)

    def _tick(self, sample: bool) -> None:
        self.report.flush()
        self.report.progress([worker.plan.progress for worker in self.workers])
        self.report.request(self.plan.progress_dir / msg.SizeRequest.FILE)
        for worker in self.workers:
            worker.look_at_log(self.plan.log_cap)
            if worker.tree is None or worker.ended:
                continue
            if sample:
                self._look_inside(worker)
                worker.tree.find()
                step = self.report.step_of(worker.plan.progress) if self.workers[1:] else None
                gpus = worker.gpus(self.plan.nvml)
                share = worker.plan.env.get("PRESAGE_SHARE")
                self.report.sample(worker.name, worker.tree, gpus, step, share)
        if sample:
            self._record()

    def _look_inside(self, worker: WorkerProcess) -> None:
        """Watch the processes of a container once they are there."""
        if self.plan.engine and worker.container and not worker.inside:
            from presage.executors.node import containers

            worker.look_inside(containers.inner_pid(self.plan.engine, worker.container))

    def _stop_asked(self) -> bool:
        return self._terminated or (self.run / msg.StopOrder.FILE).exists()

    def _stopped(self) -> msg.Verdict:
        with suppress(OSError, wire.MessageError):
            asked = wire.read(msg.StopOrder, self.run)
            return msg.exited("stopped", asked.code, asked.text)
        return msg.exited("stopped", "node_lost", "the machine is shutting down")

    # -- processes ------------------------------------------------------------------------------

    def _reap(self) -> bool:
        """Take note of every process that has ended; says whether any is left."""
        by_pid = {worker.pid: worker for worker in self._everybody() if worker.pid}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid in by_pid:
                by_pid[pid].status = status
            elif pid == self._helper[0]:
                self._helper = (pid, status)
            self._door.reaped(pid)

    def _clear(self) -> None:
        """Kill whatever is left: every descendant, since orphans become our children."""
        self.remove_containers(self._everybody())
        while self._reap():
            for pid in descendants(os.getpid()):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self._wait(0.01)
        for worker in self._everybody():
            if worker.group:
                worker.group.remove()

    def remove_containers(self, workers: list[WorkerProcess]) -> None:
        """Free the names of containers."""
        if self.plan.engine:
            from presage.executors.node import containers

            names = [worker.container for worker in workers if worker.container]
            containers.remove(self.plan.engine, names)

    def _remove_files(self) -> None:
        import shutil

        def open_up(remove: Any, path: str, _: Any) -> None:
            with suppress(OSError):
                Path(path).parent.chmod(0o700)
                remove(path)

        with acting_as(self.plan.user):  # the empty directories go with that of the run
            for path in (self.plan.work, self.plan.data_dir):
                shutil.rmtree(path, onerror=open_up)

    def _wait(self, timeout_s: float) -> None:
        """Until a process ends, somebody writes to the control pipe, or the time has passed."""
        for fd, _ in self._poll.poll(max(0, round(timeout_s * 1000 + 0.5))):
            if fd in self._door.fds:
                self._door.answer(fd, self._secrets)
            elif fd in (self._wake_read, self._control):
                with suppress(BlockingIOError):
                    os.read(fd, 4096)

    def _on_sigterm(self, *_: Any) -> None:
        self._terminated = True


def free_port(address: str) -> int:
    """A port that nobody has at an address of this machine ("" for all)."""
    import socket

    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    """Guard the run whose directory is the first argument."""
    os.closerange(LOCK_FD + 1, 1 << 16)
    os.set_inheritable(LOCK_FD, False)
    os.umask(0o077)
    become_subreaper()
    stat = read_stat(os.getpid())
    assert stat is not None
    os.ftruncate(LOCK_FD, 0)
    os.write(LOCK_FD, f"{os.getpid()} {stat.start}".encode())
    guardian = Guardian(Path(sys.argv[1]))
    guardian.report.wake()
    guardian.live()
