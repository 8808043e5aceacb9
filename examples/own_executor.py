"""An executor of our own: jobs of one worker, each a child process of this one."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from presage.control.advisors.needs import predictor
from presage.core.engine import Engine
from presage.core.loop import step
from presage.model import event as ev
from presage.model.cluster import Device, Node, Resources
from presage.model.event import Fact, Outcome
from presage.model.job import JobSpec, Reason, ReasonCode, Role
from presage.policy import registry
from presage.store.memory import MemoryStore

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Work:
    """What a job runs, and the seconds it has to end when it is asked to."""

    argv: Sequence[str]
    grace_s: float = 10.0


class ChildExecutor:
    """Runs jobs as children: simple, but they end with it and nobody adopts them."""

    def __init__(self, work: Mapping[str, Work], nodes: Sequence[Node], logs: Path) -> None:
        self._work, self._nodes, self._logs = work, nodes, logs
        self._runs: dict[Key, subprocess.Popen[bytes]] = {}
        self._stops: dict[Key, tuple[Reason, float]] = {}
        self._over: set[Key] = set()
        self._facts: list[Fact] = []

    def nodes(self) -> Sequence[Node]:
        """Where jobs can run."""
        return self._nodes

    def launch(self, decision: ev.Launch) -> None:
        """Start it, once: after a restart the loop sends again what is unconfirmed."""
        key = (decision.job, decision.attempt)
        if key in self._runs or key in self._over:
            return
        try:
            with self.log(*key).open("wb") as log:
                argv = self._work[decision.job].argv
                self._runs[key] = subprocess.Popen(argv, stdout=log, stderr=log)
        except OSError as error:
            reason = Reason(ReasonCode.LAUNCH_FAILED, f"{argv[0]}: {error.strerror}")
            self._end(key, ev.LaunchFailed(*key, reason))
        else:
            self._facts.append(ev.JobStarted(*key))

    def stop(self, decision: ev.Stop) -> None:
        """Ask it to end, and answer also for a run that is not there."""
        key = (decision.job, decision.attempt)
        if key not in self._runs:
            self._end(key, ev.JobExited(*key, Outcome.STOPPED, decision.reason))
        elif key not in self._stops:
            grace_s = self._work[decision.job].grace_s
            self._stops[key] = (decision.reason, time.monotonic() + grace_s)
            self._runs[key].terminate()

    def poll(self, now: float) -> list[Fact]:
        """What happened since the last poll."""
        for key, process in list(self._runs.items()):
            code = process.poll()
            if code is not None:
                del self._runs[key]
                self._end(key, self._exited(key, code))
            elif key in self._stops and time.monotonic() > self._stops[key][1]:
                process.kill()
        facts, self._facts = self._facts, []
        return facts

    def log(self, job: str, attempt: int) -> Path:
        """Where its output goes."""
        return self._logs / f"{job}-{attempt}.log"

    def _end(self, key: Key, fact: Fact) -> None:
        self._over.add(key)
        self._facts.append(fact)

    def _exited(self, key: Key, code: int) -> ev.JobExited:
        if key in self._stops:
            return ev.JobExited(*key, Outcome.STOPPED, self._stops.pop(key)[0])
        if code == 0:
            reason = Reason(ReasonCode.EXITED, "it ended well")
            return ev.JobExited(*key, Outcome.SUCCEEDED, reason, 0)
        if code < 0:  # killed from outside: not the job's fault, so it is started again
            lost = -code in (signal.SIGKILL, signal.SIGTERM)
            text, code = f"it was killed by {signal.Signals(-code).name}", 128 - code
            outcome = Outcome.LOST if lost else Outcome.FAILED
            return ev.JobExited(*key, outcome, Reason(ReasonCode.ERROR, text), code)
        last = self.log(*key).read_text().splitlines()[-1:] or [""]
        text = f"it ended with exit code {code}: {last[0]}"
        return ev.JobExited(*key, Outcome.FAILED, Reason(ReasonCode.ERROR, text), code)


def main() -> None:
    work = {
        "hello": Work(["echo", "hello"]),
        "typo": Work(["ecko", "hello"]),
        "broken": Work(["sh", "-c", "echo no such data; exit 3"]),
    }
    nodes = [Node("here", (Device(),), cpu_milli=1000 * (os.cpu_count() or 1))]
    role = Role("worker", Resources(gpu_milli=1000), 1, 1)
    requests: list[Fact] = [ev.NodeUp(node) for node in nodes]
    requests += [ev.JobSubmitted(JobSpec(job, (role,))) for job in work]
    engine, store = Engine(registry.build("fifo"), predictor(nodes, shares=False)), MemoryStore()
    with TemporaryDirectory() as logs:
        executor = ChildExecutor(work, nodes, Path(logs))
        while requests or engine.state.pending or engine.state.active:
            step(engine, executor, store, time.time(), requests)
            requests = []
            time.sleep(0.01)
    for _, fact in store.read():
        if isinstance(fact, ev.JobExited | ev.LaunchFailed):
            print(f"{fact.job}: {fact.reason.text if fact.reason else ''}")


if __name__ == "__main__":
    main()
