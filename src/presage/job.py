"""What a training imports to work well with Presage: its allocation, checkpoints and progress.

    from presage import job

    job.checkpoint(save, load)        # two functions that take a directory
    job.restore()                     # True if there was something to continue from
    while step < steps:
        ...                           # train
        job.step(step=step, steps=steps, metrics={"loss": loss})

`step` reports, saves when it is time to, and when Presage asks the job to stop (SIGTERM), it saves
and ends the process with exit code 143. Before the number of workers changes, all ranks stop in
`step` number n, the same for all, and rank 0 saves. Without Presage the same script runs as it is:
one worker, checkpoints in ./checkpoints, nothing reported.

Standard library only. Starts no thread and no process. Call it from the main thread.
"""

from __future__ import annotations

import atexit
import math
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

__all__ = [
    "STOPPED",
    "Allocation",
    "Scaled",
    "allocation",
    "checkpoint",
    "on_resize",
    "params",
    "progress",
    "request_workers",
    "restore",
    "save",
    "scaled",
    "step",
    "stopping",
]

STOPPED = 143
"""The exit code of a job that was asked to stop and saved first (128 + SIGTERM)."""

KEPT = 2
"""Checkpoints that are kept: the newest, and the one before it."""

_REPORT_EVERY_S = 1.0
_SAVE_EVERY_S = 600.0
_MOST_METRICS = 100
_COMPLETE = "checkpoint-"
_LOOK_S = 0.02
_TIMED_STEPS = 101
_HOLD_S = 300.0
"""How long a training stands still for a resize that does not come."""
_AGREE_S = 20.0
"""How long rank 0 waits until ranks on other machines have heard of the last step."""

Files = Callable[[Path], object]
Told = Callable[[int, int], object]


class Allocation(NamedTuple):
    """What this process was given; without Presage, what a process alone would have."""

    job_id: str
    attempt: int
    """1 at the first start; each new start has the next number."""
    rank: int
    """Number of this worker, from 0."""
    workers: int
    """How many there are."""
    role: str
    gpus: tuple[str, ...]
    """The devices in CUDA_VISIBLE_DEVICES."""
    checkpoint_dir: Path
    data_dir: Path
    result_dir: Path


def allocation() -> Allocation:
    """What this process was given, from its environment."""
    env = os.environ
    ranks, sizes = ["PRESAGE_RANK", "RANK"], ["PRESAGE_WORKERS", "WORLD_SIZE"]
    if "TORCHELASTIC_RUN_ID" in env:  # it may start several processes in one worker
        ranks.reverse()
        sizes.reverse()
    devices = env.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return Allocation(
        job_id=env.get("PRESAGE_JOB_ID", "local"),
        attempt=_whole(["PRESAGE_ATTEMPT"], 1),
        rank=_whole(ranks, 0),
        workers=_whole(sizes, 1),
        role=env.get("PRESAGE_ROLE", "worker"),
        gpus=tuple(device.strip() for device in devices if device.strip()),
        checkpoint_dir=Path(env.get("PRESAGE_CHECKPOINT_DIR", "checkpoints")),
        data_dir=Path(env.get("PRESAGE_DATA_DIR", "data")),
        result_dir=Path(env.get("PRESAGE_RESULT_DIR", "results")),
    )


def params(**defaults: Any) -> dict[str, Any]:
    """Its parameters, such as its point of a sweep; what it was not given, as named here."""
    import json

    return {**defaults, **json.loads(os.environ.get("PRESAGE_PARAMS") or "{}")}


class Scaled(NamedTuple):
    """What this worker trains with at the present number of workers."""

    batch: int
    """Samples of this worker in each step."""
    lr: float


def scaled(batch: int, lr: float, *, tuned_for: int = 1, rule: str = "linear") -> Scaled:
    """The batch of this worker and the learning rate for the present number of workers, from those
    that were tuned for `tuned_for` workers with `batch` samples each.

    `linear`: each worker keeps its batch, the rate grows with the number of workers; `sqrt`: with
    its square root, for optimizers such as Adam; `fixed`: all workers together keep their batch,
    shared out among them, and the rate stays, so that the training goes on as if nothing happened.
    """
    if batch < 1 or tuned_for < 1:
        raise ValueError("scaled() needs a batch and tuned_for of at least 1")
    growth = (given := allocation()).workers / tuned_for
    if rule == "linear":
        return Scaled(batch, lr * growth)
    if rule == "sqrt":
        return Scaled(batch, lr * math.sqrt(growth))
    if rule == "fixed":
        share, rest = divmod(batch * tuned_for, given.workers)
        return Scaled(share + (given.rank < rest), lr)
    raise ValueError(f"rule is 'linear', 'sqrt' or 'fixed', not {rule!r}")


def request_workers(count: int) -> None:
    """Ask for so many workers, for example at an epoch. Presage keeps to the manifest's range and
    gives what there is room for, when there is. Rank 0 asks for all; without Presage, nothing
    happens."""
    if count < 1:
        raise ValueError(f"a job has at least 1 worker, not {count}")
    place = _place()
    if place is not None and allocation().rank == 0:
        _write(place / "request.json", {"workers": count})


def on_resize(callback: Told) -> None:
    """Have `callback(workers_now, workers_then)` called on every rank before the number of workers
    changes: after the last step with the present number, before the checkpoint is saved."""
    _resize.callbacks.append(callback)


def checkpoint(
    save: Files, load: Files, *, every_s: float | None = None, each_rank: bool = False
) -> None:
    """Say how to save the training into an empty directory, and how to load it from there.

    Rank 0 saves for all; with `each_rank`, workers that have nothing in common each keep their
    own. `every_s` is the manifest's `checkpoint.every` unless given (10 minutes without either).
    """
    global _saving
    if every_s is None:
        every_s = float(os.environ.get("PRESAGE_CHECKPOINT_EVERY") or _SAVE_EVERY_S)
    _saving = _Checkpoints(save, load, every_s, each_rank)
    _stop.listen()


def restore() -> bool:
    """Load the newest complete checkpoint; False if there is none."""
    return _registered().restore()


def save() -> Path | None:
    """Save now; the directory of the checkpoint, or None where another rank saves for this one."""
    return _registered().save()


def step(
    *,
    epoch: int | None = None,
    step: int | None = None,
    steps: int | None = None,
    done: float | None = None,
    metrics: Mapping[str, Any] | None = None,
) -> None:
    """Call it after each step of the training, when its state can be saved.

    Reports as `progress` does and saves when that is due. If the job was asked to stop, it saves
    and ends the process. If its number of workers is about to change, it saves and waits; the
    processes of the new set continue from there.
    """
    _timer.ends()
    progress(epoch=epoch, step=step, steps=steps, done=done, metrics=metrics)
    _stop.listen()
    _resize.count()
    if _stop.asked:
        _end()
    elif _resize.is_now():
        _resize.hold()
    elif _saving is not None:
        _saving.save_if_due()
    _timer.begins()


def progress(
    *,
    epoch: int | None = None,
    step: int | None = None,
    steps: int | None = None,
    done: float | None = None,
    metrics: Mapping[str, Any] | None = None,
) -> None:
    """Say how far the training is: `steps` is how many there will be, `done` the share of the work
    (0 to 1; `step` / `steps` unless given). Written at most once a second, the last always."""
    _report.tell(_Told(epoch, step, steps, done, metrics, time.time()))


def stopping() -> bool:
    """Whether the job was asked to stop; the next `step` will end it."""
    _stop.listen()
    return _stop.asked


class _Checkpoints:
    """Directories that are complete or not there: each is written under another name, flushed to
    disk, and renamed."""

    def __init__(self, save: Files, load: Files, every_s: float, each_rank: bool) -> None:
        given = allocation()
        directory = given.checkpoint_dir.absolute()
        self._save = save
        self._load = load
        self._every_s = every_s
        self._directory = directory / f"rank-{given.rank}" if each_rank else directory
        self.each_rank = each_rank
        self._saves = each_rank or given.rank == 0
        self._saved_at = time.monotonic()
        self._awaited = given.workers > 1 and not each_rank
        self._ended = self._directory / f".ended-{given.attempt}"
        if self._saves:
            self._ended.unlink(missing_ok=True)  # without Presage, of an earlier start

    def restore(self) -> bool:
        checkpoints = self._complete()
        if checkpoints:
            self._load(checkpoints[-1][1])
        self._saved_at = time.monotonic()
        return bool(checkpoints)

    def save_if_due(self) -> None:
        if not self._saves or time.monotonic() - self._saved_at < self._every_s:
            return
        try:
            self.save()
        except OSError as error:
            self._saved_at = time.monotonic()
            _warn(f"no checkpoint was saved, the training goes on: {error}")

    def save(self) -> Path | None:
        if not self._saves:
            return None
        from shutil import rmtree  # late, like json below: most of what an import would cost

        self._directory.mkdir(parents=True, exist_ok=True)
        for left in self._directory.glob(".saving-*"):  # by a process that was killed
            rmtree(left, ignore_errors=True)
        before = self._complete()
        number = before[-1][0] + 1 if before else 1
        made = self._directory / f"{_COMPLETE}{number:08}"
        unfinished = self._directory / f".saving-{number:08}"
        try:
            unfinished.mkdir()
            self._save(unfinished)
            _flush(unfinished)
            unfinished.rename(made)
        except BaseException:
            rmtree(unfinished, ignore_errors=True)
            raise
        _sync(self._directory, os.O_DIRECTORY)
        for old_number, old in before[: len(before) + 1 - KEPT]:
            leaving = self._directory / f".saving-old-{old_number:08}"  # never half of one
            old.rename(leaving)
            rmtree(leaving, ignore_errors=True)
        self._saved_at = time.monotonic()
        return made

    def end(self) -> bool:
        """Save for the last time; False while this rank still has to wait for the one that saves,
        because a training in step with it could not go on without this one."""
        if not self._saves:
            return self._ended.exists()
        made = self.save()
        _say(f"asked to stop; saved {made}")
        if self._awaited:
            with suppress(OSError):
                self._ended.touch()
        return True

    def _complete(self) -> list[tuple[int, Path]]:
        """The complete checkpoints with their numbers, oldest first."""
        if not self._directory.is_dir():
            return []
        numbered = [
            (path.name.removeprefix(_COMPLETE), path)
            for path in self._directory.glob(f"{_COMPLETE}*")
        ]
        return sorted((int(number), path) for number, path in numbered if number.isdecimal())


class _Told(NamedTuple):
    """What `progress` was given. Turned into numbers only when it is written: a metric may be a
    tensor whose value is still being computed."""

    epoch: int | None
    step: int | None
    steps: int | None
    done: float | None
    metrics: Mapping[str, Any] | None
    at: float

    def to_json(self) -> dict[str, Any]:
        """Plain numbers; one that is not finite is null."""
        done = self.done
        if done is None and self.step is not None and self.steps:
            done = self.step / self.steps
        metrics = list((self.metrics or {}).items())[:_MOST_METRICS]
        return {
            "epoch": None if self.epoch is None else int(self.epoch),
            "step": None if self.step is None else int(self.step),
            "steps": None if self.steps is None else int(self.steps),
            "done": None if done is None else min(1.0, max(0.0, float(done))),
            "metrics": {str(name)[:100]: _finite(value) for name, value in metrics},
            "step_s": _timer.median_s(),
            "at": self.at,
        }


class _ProgressFile:
    """The file that says how far the training is: replaced as a whole, never in the way."""

    def __init__(self) -> None:
        self._latest: _Told | None = None
        self._next = -math.inf
        self._pid = 0
        self._warned = False

    def tell(self, told: _Told) -> None:
        if not os.environ.get("PRESAGE_PROGRESS"):
            return
        self._latest = told
        if self._pid != os.getpid():
            self._pid = os.getpid()
            atexit.register(self.flush)
        if time.monotonic() >= self._next:
            self.flush()

    def flush(self) -> None:
        """Write what was said last, unless it is written, or was said before a fork."""
        import json

        path = os.environ.get("PRESAGE_PROGRESS")
        if self._latest is None or not path or self._pid != os.getpid():
            return
        told, self._latest = self._latest, None
        self._next = time.monotonic() + _REPORT_EVERY_S
        beside = Path(f"{path}.{self._pid}")
        try:
            beside.write_text(json.dumps(told.to_json()), encoding="utf-8")
            beside.replace(path)
        except (OSError, TypeError, ValueError) as error:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            if not self._warned:
                self._warned = True
                _warn(f"progress is not reported, the training goes on: {error}")


class _StepTimer:
    """How long a step takes: from the end of one call of `step` to the next, saving aside."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._took: deque[float] = deque(maxlen=_TIMED_STEPS)

    def begins(self) -> None:
        self._began = time.perf_counter()

    def ends(self) -> None:
        if self._began is not None:
            self._took.append(time.perf_counter() - self._began)

    def median_s(self) -> float | None:
        took = sorted(self._took)
        return took[len(took) // 2] if took else None  # none before the second step


class _SignalWatch:
    """Whether SIGTERM came, and who wanted to know of it before."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None
        self._pid = 0

    def listen(self) -> None:
        """Catch SIGTERM, once; in another thread than the main one that is not possible."""
        if self._pid == os.getpid():
            return
        try:
            before = signal.signal(signal.SIGTERM, self._on_signal)
        except ValueError:
            return
        self._pid = os.getpid()
        if before != self._on_signal:
            self._before = before

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._pid != os.getpid():  # a child made by fork, such as one that loads data: it ends
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.asked = True
        if callable(self._before):
            self._before(number, frame)


class _ResizeBarrier:
    """A barrier: all ranks stand still after the same step while the number of workers changes.

    Ranks that train in step cannot be stopped one by one: those left behind would wait for the
    others, or fail. Rank 0 therefore names a step that nobody can have passed yet: the next one,
    since that cannot be completed without rank 0. Word is passed on in files beside the one for
    progress; Presage carries it to other machines.
    """

    def __init__(self) -> None:
        self.callbacks: list[Told] = []
        self._calls = 0
        self._number = 0
        """The latest resize that this process stood still for."""
        self._asked: dict[str, Any] = {}

    def count(self) -> None:
        """A step is done."""
        self._calls += 1
        if self._calls == 1 and (place := _place()) is not None:
            with suppress(OSError):
                (place / "stepping").touch()

    def is_now(self) -> bool:
        """Whether this is the step after which all stand still."""
        place = _place()
        if place is None or not os.path.exists(place / "resize.json"):  # noqa: PTH110 (each step)
            return False
        asked = _read(place / "resize.json")
        number = asked.get("number", 0)
        if number <= self._number:
            return False
        self._asked = asked
        given = allocation()
        if given.workers == 1 or (_saving is not None and _saving.each_rank):
            return True
        at = _read(place / "stop-at.json")
        if at.get("number") != number:
            if given.rank == 0:
                _write(place / "stop-at.json", {"number": number, "call": self._calls + 1})
                if asked.get("apart"):  # others must know before they can have passed that step
                    agreed = place / "agreed.json"
                    _wait(lambda: _read(agreed).get("number") == number, _AGREE_S)
            return False
        # Ranks that do not train in step look whether rank 0 stands still already.
        held: bool = _read(place / "held-0").get("number") == number
        return held or self._calls >= int(at["call"])

    def hold(self) -> None:
        """Save, say so, and wait to be stopped."""
        place, given = _place(), allocation()
        assert place is not None
        self._number = self._asked["number"]
        then = self._asked["workers"]
        for callback in self.callbacks:
            callback(given.workers, then)
        made = _saving.save() if _saving is not None else None
        if made is not None:
            _say(f"going from {given.workers} to {then} workers; saved {made}")
        _report.flush()
        _write(place / f"held-{given.rank}", {"number": self._number})
        _wait(lambda: False, _HOLD_S)
        if _stop.asked:
            sys.exit(STOPPED)
        _warn("the number of workers did not change after all; the training goes on")


_saving: _Checkpoints | None = None
_report = _ProgressFile()
_timer = _StepTimer()
_stop = _SignalWatch()
_resize = _ResizeBarrier()


def _end() -> None:
    _report.flush()
    if _saving is None or _saving.end():
        sys.exit(STOPPED)


def _wait(happened: Callable[[], bool], within_s: float) -> None:
    """Until something has happened, the job was asked to stop, or the time has passed."""
    end = time.monotonic() + within_s
    while not (_stop.asked or happened() or time.monotonic() > end):
        time.sleep(_LOOK_S)


def _place() -> Path | None:
    """Where word is passed on between this process and Presage; None without it."""
    progress = os.environ.get("PRESAGE_PROGRESS")
    return Path(progress).parent if progress else None


def _read(file: Path) -> dict[str, Any]:
    """A JSON object; empty when there is none."""
    import json

    try:
        body = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


def _write(file: Path, body: dict[str, Any]) -> None:
    """A JSON object, whole or not at all; a full disk is no reason to stop a training."""
    import json

    beside = Path(f"{file}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(body), encoding="utf-8")
        beside.replace(file)
    except OSError as error:
        _warn(f"{file.name} cannot be written, the training goes on: {error}")


def _registered() -> _Checkpoints:
    if _saving is None:
        raise RuntimeError("call presage.job.checkpoint(save, load) first")
    return _saving


def _finite(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _whole(names: list[str], default: int) -> int:
    """The first of these variables that is set, as a number."""
    for name in names:
        if text := os.environ.get(name):
            try:
                return int(text)
            except ValueError:
                raise ValueError(f"{name} is {text!r}, not a whole number") from None
    return default


def _flush(directory: Path) -> None:
    """Bring everything in a directory to disk."""
    for folder, _, names in os.walk(directory):
        for name in names:
            if not (Path(folder) / name).is_symlink():
                _sync(Path(folder) / name)
        _sync(Path(folder), os.O_DIRECTORY)


def _sync(path: Path, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _warn(text: str) -> None:
    _say(f"warning: {text}")


def _say(text: str) -> None:
    """A line on stderr; that it cannot be written is no reason to stop a training."""
    with suppress(OSError, ValueError, AttributeError):
        print(f"presage: {text}", file=sys.stderr, flush=True)
