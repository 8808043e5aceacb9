"""The guardian of a run's workers on one node of a cluster.

It is the local guardian with four differences: nothing begins before every node of the gang is
ready, workers that take the place of others load PyTorch before that, secrets come through a pipe,
and it ends with the agent that holds the other end of that pipe. Standard library only.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from presage.executors.node import messages as msg
from presage.executors.node import warming, wire
from presage.executors.node.guardian import Guardian, free_port
from presage.executors.node.limits import become_subreaper
from presage.executors.node.processes import descendants
from presage.executors.node.worker import StartError, WorkerProcess

__all__ = ["LEAVING", "NodeGuardian", "main"]

LEAVING = "leaving"
"""Why the node is taken away, in words, if it is."""
_AGENT = 0
"""Standard input: a line of secrets, then nothing until the agent is gone."""
_TICK_S = 1.0
_LOOK_S = 0.05


class NodeGuardian(Guardian):
    """The life of a run on one of its nodes."""

    CHECKS_PROGRAMS = True

    def __init__(self, run: Path, secrets: dict[str, str]) -> None:
        super().__init__(run)
        self._secrets = secrets
        self._warm: list[WorkerProcess] = []
        """Workers that have loaded PyTorch and wait."""
        os.set_blocking(_AGENT, False)
        self._poll.register(_AGENT, select.POLLIN)

    def _read_secrets(self) -> str | None:
        return None  # they are here already

    def _start(self) -> str | None:
        """Say that this node is ready, and start when all are."""
        if self.plan.warm:
            self._warm_up()
        self.report.event("Ready", port=free_port(""))
        while not ((self.run / msg.GoOrder.FILE).exists() or self._stop_asked()):
            self._wait(_TICK_S)
            self._reap()
        go = wire.find(msg.GoOrder, self.run)
        if self.plan.torchrun and go:
            self.set_env(MASTER_ADDR=go.address, MASTER_PORT=str(go.port))
            self.plan = self.plan.but(torchrun=False)  # the port was chosen on the first node
        failure = super()._start()
        if failure is None and go:
            self._began -= go.ran_s  # the time limit is that of all sizes together
        return failure

    def _warm_up(self) -> None:
        """Start workers that load PyTorch and wait; whatever goes wrong, they start later."""
        place = self.plan.progress_dir
        warming.copy_scripts(place)
        plans = [warming.waiting(plan, place) for plan in self.plan.workers]
        self.workers = self._warm = super().make(plans)
        try:
            super().begin(self._warm)
        except StartError:
            return
        end = time.monotonic() + warming.WARM_S
        while not (self._all_warm() or self._stop_asked() or time.monotonic() > end):
            if any(worker.ended for worker in self._warm):
                return
            self._wait(_LOOK_S)
            self._reap()

    def _all_warm(self) -> bool:
        return warming.all_waiting(self._warm, self.plan.progress_dir)

    def make(self, plans: Sequence[msg.WorkerPlan]) -> list[WorkerProcess]:
        """Workers that are not started yet, or that were started to wait."""
        if self._warm and self._all_warm() and not any(worker.ended for worker in self._warm):
            return self._warm
        for worker in self._warm:
            if worker.pid:
                worker.kill()
        self._warm = []
        return super().make(plans)

    def begin(self, workers: list[WorkerProcess]) -> None:
        """Start all of these or none; raises StartError."""
        if not self._warm:
            super().begin(workers)
            return
        for worker, plan in zip(workers, self.plan.workers, strict=True):
            warming.begin(worker, self.plan.progress_dir, plan.env)

    def _kept(self, words: str) -> str:
        return ""  # the server says it, when it has what all nodes left

    def _ask_all_to_stop(self) -> float:
        with suppress(wire.MessageError):
            asked = wire.find(msg.StopOrder, self.run)
            if asked and asked.grace_s is not None:
                self.plan = self.plan.but(grace_s=min(self.plan.grace_s, asked.grace_s))
        return super()._ask_all_to_stop()

    def _stopped(self) -> msg.Verdict:
        if self._terminated:
            words = "the node is shutting down"
            with suppress(OSError):
                words = (self.run / LEAVING).read_text()
            return msg.exited("lost", "node_lost", words)
        return super()._stopped()

    def _wait(self, timeout_s: float) -> None:
        super()._wait(timeout_s)
        agent = select.poll()
        agent.register(_AGENT, select.POLLIN)
        if any(event & select.POLLHUP for _, event in agent.poll(0)):
            self._abandon()

    def _abandon(self) -> None:
        """The agent is gone, and with it whoever could hear of this run: end it at once, since the
        job may already be starting somewhere else."""
        while pids := descendants(os.getpid()):
            for pid in pids:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            super()._wait(0.01)
        os._exit(1)


def _read_line(fd: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(fd, 1)
        if not part:
            break
        line += part
    return line


def main() -> None:
    """Guard the run whose directory is the first argument."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(0o077)
    become_subreaper()
    NodeGuardian(Path(sys.argv[1]), json.loads(_read_line(_AGENT))).live()
