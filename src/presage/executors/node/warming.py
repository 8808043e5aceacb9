"""Workers that load PyTorch while others still train, and then wait for the word to begin.

Loading takes seconds of CPU in each worker, for which a training would stand still when its size
changes. Standard library only. Who waits is `warm_start.py`, with the Python of the job. Decides
neither when a size changes nor which workers there are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from presage.executors.node.messages import RunPlan, WorkerPlan
from presage.executors.node.worker import WorkerProcess

__all__ = ["WARM_S", "all_waiting", "begin", "can_wait", "copy_agent", "copy_scripts", "waiting"]

WARM_S = 60.0
"""How long they may take to load it."""
_SCRIPT = "presage_warm.py"
_TORCH = b"/libtorch"


def can_wait(plan: RunPlan, plans: Sequence[WorkerPlan], present: Iterable[WorkerProcess]) -> bool:
    """Whether a set of workers can come up beside the one that is there, and has anything to load:
    programs of Python, of which one that runs has PyTorch."""
    plain = not (plan.engine or plan.agents or plan.share_env) and all(
        _is_python(each.argv) and not (each.resume or each.console) for each in plans
    )
    pids = [pid for worker in present if worker.tree for pid in worker.tree.pids]
    return plain and any(map(_has_torch, pids))


def waiting(plan: WorkerPlan, place: Path) -> WorkerPlan:
    """The plan of a worker that first waits."""
    wait = (f"{place}/{_SCRIPT}", str(_word(plan, place)))
    return plan.but(argv=(plan.argv[0], *wait, *plan.argv))


def all_waiting(workers: Iterable[WorkerProcess], place: Path) -> bool:
    """Whether all of them have loaded it."""
    return all(Path(f"{_word(worker.plan, place)}.warm").exists() for worker in workers)


def begin(worker: WorkerProcess, place: Path, env: Mapping[str, str]) -> None:
    """Give the word, with what is new in its environment."""
    word = _word(worker.plan, place)
    new = Path(f"{word}.new")
    new.write_text(json.dumps(dict(env)))
    new.replace(word)


def copy_scripts(place: Path) -> None:
    """Put what waits where the Python of a job finds it."""
    copy_agent(place)
    (place / _SCRIPT).write_bytes(Path(__file__).with_name("warm_start.py").read_bytes())


def copy_agent(place: Path) -> None:
    """Put the torchrun agent where the Python of a job finds it."""
    source = Path(__file__).with_name("torchrun_agent.py")
    (place / source.name).write_bytes(source.read_bytes())


def _word(plan: WorkerPlan, place: Path) -> Path:
    return place / f"go-{plan.cgroup}"


def _is_python(argv: Sequence[str]) -> bool:
    return Path(argv[0]).name.startswith("python")


def _has_torch(pid: int) -> bool:
    with suppress(OSError):
        return _TORCH in Path(f"/proc/{pid}/maps").read_bytes()
    return False
