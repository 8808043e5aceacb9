"""Measures how distributed trainings pulse: every workload in every setting, on real links.

    python -m benchmarks.bursts_collect --out DIR [--settings W2/1gbit,P2W2/100mbit] [--models 20]

Run it as root on an idle machine. A line is added to DIR/runs.jsonl for each run; what is there
already is not run again, so the same command goes on after it was stopped, however it was. Every
tenth workload is measured `--repeats` times, for the noise. `--list` only says what would be run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks._burst_runs import Lab, Limits, RunFailed
from presage.foresee.bursts.settings import Setting
from presage.model.errors import PresageError, UserError
from presage.telemetry.bursts.counters import copied_bytes_s
from presage.telemetry.rows import objects

SETTINGS = "W2/1gbit,W2/100mbit,W3/1gbit,P1W2/1gbit,P2W2/1gbit,P2W2/1gbit/async"
NOISE_EVERY = 10

_IMAGE = "3x64x64"
_MODELS: tuple[tuple[str, str | None, tuple[int, ...]], ...] = (
    ("squeezenet1-0", _IMAGE, (2, 4, 8)),
    ("squeezenet1-1", _IMAGE, (2, 4, 8)),
    ("squeezenet1-1", "3x96x96", (1, 2, 4)),
    ("shufflenetv2-x0-5", _IMAGE, (2, 4, 8)),
    ("shufflenetv2-x1-0", _IMAGE, (2, 4, 8)),
    ("shufflenetv2-cifar100", None, (2, 4, 8)),
    ("mnasnet0-5", _IMAGE, (2, 4, 8)),
    ("mnasnet0-75", _IMAGE, (2, 4)),
    ("mnasnet1-0", _IMAGE, (2, 4)),
    ("mobilenetv2", _IMAGE, (2, 4)),
    ("mobilenetv3-small", _IMAGE, (2, 4, 8)),
    ("mobilenetv3-large", _IMAGE, (2, 4)),
    ("efficientnet-b0", _IMAGE, (2, 4)),
    ("resnet18-cifar10", None, (1, 2)),
    ("resnet18", _IMAGE, (2, 4)),
    ("densenet121", _IMAGE, (2, 3)),
    ("googlenet", _IMAGE, (2, 4)),
    ("dcgan", None, (1, 2)),
    ("pointnet", "3x256", (2, 4, 8)),
    ("gin-molpcba", None, (2, 8, 16)),
    ("lstm-wikitext2", "16:int64", (2, 4)),
    ("mlp", None, (16, 64, 256)),
    ("td3", None, (32, 128, 256)),
    ("a3c", None, (4, 16, 64)),
    ("a2c", None, (1, 4, 8)),
    ("dqn", None, (1, 4, 8)),
    ("neumf", None, (64, 256, 1024)),
)
_OPTIMIZERS = {"sgd": 1, "momentum": 3, "adam": 1}
"""Each with how many models share one that has it: momentum costs as much as SGD here."""


def workloads() -> list[dict[str, Any]]:
    """The list that is measured if none is given; small enough for two cores, most parameters
    below ten million, so that a link of 100 Mbit carries some steps in seconds."""
    out = []
    for at, (model, shape, batches) in enumerate(_MODELS):
        for optimizer, share in _OPTIMIZERS.items():
            for batch in batches if at % share == 0 else ():
                out.append(
                    {"model": model, "input": shape, "batch": batch, "optimizer": optimizer}
                )
    return out


def spread(items: list[dict[str, Any]], count: int | None) -> list[dict[str, Any]]:
    """So many of them from the whole list."""
    if count is None or count >= len(items):
        return items
    return [items[at * len(items) // count] for at in range(count)]


def read_workloads(path: Path) -> list[dict[str, Any]]:
    """Workloads as JSON lines with model, batch, and if need be input and optimizer."""
    out = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            data = json.loads(line) if line.strip() else None
        except ValueError:
            raise UserError(f"{path}, line {number}: this is no JSON object") from None
        if data is None:
            continue
        if not {"model", "batch"} <= set(data) <= {"model", "batch", "input", "optimizer"}:
            raise UserError(f"{path}, line {number}: give model, batch, input, optimizer")
        out.append({"input": None, "optimizer": "sgd"} | data)
    return out


Key = tuple[str, str, int]


def key_of(run: dict[str, Any]) -> Key:
    """What makes a run the same as another."""
    return json.dumps(run["workload"], sort_keys=True), str(run["setting"]), int(run["repeat"])


def planned(
    items: list[dict[str, Any]], settings: list[Setting], repeats: int
) -> Iterator[dict[str, Any]]:
    """All runs of a workload after each other, workloads shuffled, so that the list can be cut:
    what is there then is spread over the models, with its repeats."""
    order = list(enumerate(items))
    random.Random(0).shuffle(order)
    for at, workload in order:
        for repeat in range(repeats if at % NOISE_EVERY == 0 else 1):
            for setting in settings:
                yield {"workload": workload, "setting": str(setting), "repeat": repeat}


def known_runs(path: Path, again: bool) -> set[Key]:
    """What was run before; with `again`, without what failed."""
    if not path.is_file():
        return set()
    with path.open("rb") as file:
        done = [run for run in objects(file) if "workload" in run]
    return {key_of(run) for run in done if not (again and "failed" in run)}


def add_line(path: Path, run: dict[str, Any]) -> None:
    """One write at the end of the file, and on the disk; a torn line before it is ended."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(fd).st_size
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        os.write(fd, (b"\n" if torn else b"") + json.dumps(run).encode() + b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)


def collect(
    out: Path, runs: list[dict[str, Any]], limits: Limits, *, again: bool, budget_s: float | None
) -> int:
    """Run what is not known yet; how many runs failed."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "runs.jsonl"
    known = known_runs(path, again)
    left = [run for run in runs if key_of(run) not in known]
    print(f"{len(runs)} runs, {len(runs) - len(left)} of them done before", flush=True)
    if not left:
        return 0
    tasks = max(len(Setting.parse(run["setting"]).roles) for run in left)
    peak = copied_bytes_s()
    machine = {"cores": len(os.sched_getaffinity(0)), "copied_gb_s": round(peak / 1e9, 2)}
    began, failed = time.monotonic(), 0
    with Lab(tasks, limits, peak) as lab:
        for number, run in enumerate(left):
            if budget_s is not None and time.monotonic() - began > budget_s:
                print(f"the time is over after {number} runs; the same command goes on")
                break
            setting = Setting.parse(run["setting"])
            try:
                found = lab.run(run["workload"], setting, out / "last.log")
            except RunFailed as error:
                found, failed = {"failed": str(error)}, failed + 1
            at = datetime.now(UTC).isoformat(timespec="seconds")
            add_line(path, run | found | {"at": at, "machine": machine})
            _say(number + 1, len(left), run, found, time.monotonic() - began)
    return failed


def _say(done: int, of: int, run: dict[str, Any], found: dict[str, Any], spent_s: float) -> None:
    what = run["workload"]
    name = f"{what['model']} batch {what['batch']} {what['optimizer']} {run['setting']}"
    left_s = spent_s / done * (of - done)
    story = found.get("failed") or f"{found['step_ms']:.0f} ms a step"
    print(f"{done}/{of} {name}: {story}; {left_s / 60:.0f} min left", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="where runs.jsonl is kept")
    parser.add_argument("--settings", default=SETTINGS)
    parser.add_argument("--workloads", type=Path, help="JSON lines instead of the own list")
    parser.add_argument("--models", type=int, help="so many workloads, spread over the list")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--most-s", type=float, default=Limits().most_s)
    parser.add_argument("--minutes", type=float, help="stop after the run that goes beyond")
    parser.add_argument("--again", action="store_true", help="run again what failed")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    try:
        settings = [Setting.parse(name) for name in options.settings.split(",")]
        items = read_workloads(options.workloads) if options.workloads else workloads()
        items = spread(items, options.models)
        runs = list(planned(items, settings, options.repeats))
        if options.list:
            print(f"{len(items)} workloads, {len(settings)} settings, {len(runs)} runs")
            return
        cores = len(os.sched_getaffinity(0))
        print(f"{platform.machine()}, {cores} cores; {len(items)} workloads")
        budget_s = None if options.minutes is None else 60 * options.minutes
        limits = Limits(most_s=options.most_s)
        failed = collect(options.out, runs, limits, again=options.again, budget_s=budget_s)
    except PresageError as error:
        sys.exit(f"error: {error}")
    print(f"{failed} runs failed" if failed else "done")


if __name__ == "__main__":
    main()
