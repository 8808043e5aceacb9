"""What `presage tune` tries where nothing was measured yet: a command with `--try`, or a manifest
with a sweep. Each trial is a job like any other; its time is that of its runs, or a metric that it
reports.

Composes manifests and asks the server; which trial is next is chosen elsewhere.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl

from presage.cli._output import say
from presage.client import Client, JobHandle
from presage.manifest import Submission, read_submission, submission_of
from presage.model.answers import JobStatus
from presage.model.errors import ManifestError, UserError

__all__ = [
    "SPARK_SETTINGS",
    "TrialJobs",
    "from_command",
    "from_manifest",
    "usual_settings",
    "words_of",
]

SPARK_SETTINGS = {
    "spark.sql.shuffle.partitions": "200,8,32",
    "spark.sql.adaptive.enabled": "true,false",
    "spark.sql.autoBroadcastJoinThreshold": "10m,-1,100m",
    "spark.serializer": "org.apache.spark.serializer.JavaSerializer,"
    "org.apache.spark.serializer.KryoSerializer",
    "spark.io.compression.codec": "lz4,zstd",
    "spark.memory.fraction": "0.6,0.8",
}
"""What is tried for `spark-submit` when nothing is named; Spark's own values come first."""
_RESOURCES = ("cpus", "gpus", "memory")
_SPAN = re.compile(r"(-?\d{1,9})\.\.(-?\d{1,9})")
_RUNNING = "PROCESSING"


@dataclass(slots=True)
class TrialJobs:
    """Configurations that may be tried, and the jobs that try them."""

    client: Client
    asked: Submission
    folder: Path | None
    """What is sent along; None for nothing."""
    money: bool
    """Whether less is paid for, and not whether it is sooner over: what a run holds × its time."""
    columns: tuple[str, ...] = ()
    """Names of the settings as they were given; those of the manifest may differ."""
    uploaded: str | None = None
    jobs: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """What became of trials that came to nothing, a line each."""

    @property
    def table(self) -> pl.DataFrame:
        """The configurations, a row each."""
        points = list(self.asked.points)
        names = self.columns or tuple(points[0])
        rows = [dict(zip(names, point.values(), strict=True)) for point in points]
        return pl.DataFrame(
            {name: _series([row[name] for row in rows]) for name in names}, strict=False
        )

    @property
    def unit(self) -> str:
        """Of what a trial is measured by."""
        if self.asked.objective is not None:
            return self.asked.objective.metric
        if not self.money:
            return "s"
        return "GPU h" if self._held(self.asked.first.to_json())[0] else "core h"

    def measure(self, number: int) -> float:
        """Run the trial of one configuration; infinite if it fails."""
        if self.uploaded is None and self.folder is not None:
            self.uploaded = self.client.upload(self.folder)
        manifest = self.asked.job(self.asked.points[number]).to_json()
        manifest.pop("objective", None)
        job = self.client.submit_text(
            json.dumps(manifest), "application/json", folder=self.uploaded
        )
        self.jobs.append(job.id)
        try:
            info = job.wait().info
        except KeyboardInterrupt:
            job.stop()
            raise
        value = self._value(info, manifest)
        if not math.isfinite(value):
            self._note_failure(job, info)
        return value

    def _value(self, info: JobStatus, manifest: Mapping[str, Any]) -> float:
        if info.status != "COMPLETED":
            return math.inf
        objective = self.asked.objective
        if objective is not None:
            said = (info.progress or {}).get(objective.metric)
            if not isinstance(said, int | float) or not 0 < said < math.inf:
                return math.inf
            return float(said) if objective.mode == "min" else 1.0 / said
        took_s = ran_s(info)
        gpus, cores = self._held(manifest)
        return took_s * (gpus or cores) / 3600 if self.money else took_s

    def _held(self, manifest: Mapping[str, Any]) -> tuple[float, float]:
        """GPUs and cores that a job has."""
        resources = manifest.get("resources") or {}
        workers = manifest.get("workers") or 1
        count = float(workers) if isinstance(workers, int) else 1.0
        return count * float(resources.get("gpus") or 0), count * float(resources.get("cpus") or 1)

    def _note_failure(self, job: JobHandle, info: JobStatus) -> None:
        objective = self.asked.objective
        why = f"{info.status}: {info.reason.text}"
        if info.status == "COMPLETED" and objective is not None:
            why = f"it reported no {objective.metric} above 0"
        self.failed.append(
            f"{job.id} is {why}" if info.status != "COMPLETED" else f"{job.id}: {why}"
        )
        say(f"note: {self.failed[-1]}")
        if len(self.failed) == len(self.jobs) == 2:
            raise UserError(
                f"the first two trials failed, so the others would: see `presage logs {job.id}`"
            )


def ran_s(info: JobStatus) -> float:
    """Seconds that a job ran, over all its attempts."""
    ends = [*info.history]
    spells = [then.at - entry.at for entry, then in pairwise(ends) if entry.status == _RUNNING]
    return max(1e-3, sum(spells))


def usual_settings(command: Sequence[str]) -> list[str]:
    """What to vary when nobody says so: known for Spark alone."""
    if any(Path(word).name == "spark-submit" for word in command):
        return [f"{name}={values}" for name, values in SPARK_SETTINGS.items()]
    raise UserError(
        "say what to vary: --try batch=32,64,128 where the command has {batch}; also --try"
        " cpus=1,2 (gpus, memory), and --try spark.NAME=A,B for spark-submit"
    )


def from_command(
    client: Client,
    command: Sequence[str],
    settings: Sequence[str],
    *,
    resources: Mapping[str, Any],
    metric: str | None,
    money: bool,
    folder: bool,
) -> TrialJobs:
    """A command in which `{name}` stands for a setting."""
    grid = dict(_setting(text) for text in settings or usual_settings(command))
    words, given = list(command), {name: _parameter(name) for name in grid}
    if len(set(given.values())) < len(given):
        raise UserError("two settings have the same name; rename one of them")
    asked: dict[str, Any] = dict(resources)
    for name, parameter in given.items():
        place = f"${{{parameter}}}"
        inside = [word.replace(f"{{{name}}}", place) for word in words]
        if inside != words:
            words = inside
        elif name.startswith("spark."):
            words = _with_conf(words, f"{name}={place}")
        elif name in _RESOURCES:
            asked[name] = place
        elif not any(place in word for word in words):
            raise UserError(
                f"--try {name}: the command has no {{{name}}}; write it where the value goes"
            )
    if "cpus" in grid and "cpus" in resources:
        raise UserError("--cpus and --try cpus contradict each other: give one of them")
    data = {
        "name": "tune",
        "command": words,
        "preemptible": False,
        **({"resources": asked} if asked else {}),
        **({"objective": _objective(metric)} if metric else {}),
        "sweep": {"grid": {given[name]: values for name, values in grid.items()}},
    }
    made = submission_of(data, "the command")
    return TrialJobs(client, made, Path.cwd() if folder else None, money, tuple(grid))


def from_manifest(client: Client, path: Path, *, metric: str | None, money: bool) -> TrialJobs:
    """The points of a manifest's sweep."""
    changes = [f"objective={json.dumps(_objective(metric))}"] if metric else []
    asked = read_submission(path, changes)
    if asked.sweep is None:
        raise UserError(
            f"{path} has no sweep; say what to vary, such as sweep: {{grid: {{batch: [32, 64]}}}}"
        )
    folder = None if asked.first.git is not None else path.absolute().parent
    return TrialJobs(client, asked, folder, money)


def words_of(command: Sequence[str]) -> str:
    """A command as a name for its runs."""
    return shlex.join(command)[:120]


def _objective(metric: str) -> dict[str, str]:
    name, _, mode = (
        metric.rpartition(":") if metric.endswith((":max", ":min")) else (metric, "", "")
    )
    return {"metric": name, "mode": mode or "min"}


def _setting(text: str) -> tuple[str, list[Any]]:
    name, equals, values = text.partition("=")
    span = _SPAN.fullmatch(values.strip())
    said: list[Any] = []
    if span is not None:
        said = list(range(int(span[1]), int(span[2]) + 1))
    elif equals:
        said = [_value_of(one.strip()) for one in values.split(",") if one.strip()]
    if not name.strip() or not said:
        raise UserError(f"--try {text}: write NAME=A,B,C or NAME=1..4")
    if len({json.dumps(one) for one in said}) < len(said):
        raise UserError(f"--try {text}: a value is there twice")
    return name.strip(), said


def _value_of(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if math.isfinite(value):
            return value
    return text


def _parameter(name: str) -> str:
    """A setting as a parameter of a sweep may be called."""
    made = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if not re.match(r"[A-Za-z_]", made):
        raise ManifestError(f"--try {name}: a setting's name begins with a letter")
    return made


def _with_conf(words: Sequence[str], setting: str) -> list[str]:
    """`spark-submit` with one more setting."""
    for place, word in enumerate(words):
        if Path(word).name == "spark-submit":
            return [*words[: place + 1], "--conf", setting, *words[place + 1 :]]
    raise UserError(f"--try {setting.split('=')[0]}: the command has no spark-submit")


def _series(values: Sequence[Any]) -> pl.Series:
    """Numbers if all are, else words."""
    if all(isinstance(one, int | float) and not isinstance(one, bool) for one in values):
        return pl.Series(values, strict=False)
    return pl.Series([one if isinstance(one, str) else json.dumps(one) for one in values])
