"""Published experiments, run here: what the paper reported beside what Presage measures.

An experiment is a module with `run(data, *, seeds, progress) -> Reproduction`; it is imported when
it is asked for. Reads the public data, writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from presage.model.errors import UserError
from presage.reproduce.result import Progress, ReproducedFigure, Reproduction, reproduction_page

__all__ = [
    "EXPERIMENTS",
    "Progress",
    "ReproducedFigure",
    "Reproduction",
    "data_directory",
    "reproduce",
    "reproduction_page",
]

EXPERIMENTS = {
    "hotcloud20": "hotcloud20",
    "dlaas": "dlaas",
    "elastic-kubeflow": "elastic_kubeflow",
    "ai4dl": "ai4dl",
    "lucid-week": "lucid_week",
}
"""Name -> module of this package."""

Run = Callable[..., Reproduction]


def reproduce(
    name: str, data: Path, *, seeds: int = 5, progress: Progress | None = None
) -> Reproduction:
    """Run an experiment by its name."""
    if name not in EXPERIMENTS:
        raise UserError(f"unknown experiment '{name}'; there are: {', '.join(EXPERIMENTS)}")
    if seeds < 1:
        raise UserError(f"an experiment needs 1 seed or more, not {seeds}")
    run: Run = import_module(f"presage.reproduce.{EXPERIMENTS[name]}").run
    return run(data, seeds=seeds, progress=progress or _silent)


def data_directory(given: Path | None = None) -> Path:
    """Where the public data is: as given, else `$PRESAGE_DATA`, else `../shared/data`."""
    if given is not None:
        if not given.is_dir():
            raise UserError(f"--data {given} is not a directory")
        return given
    for place in (os.environ.get("PRESAGE_DATA"), "../shared/data"):
        if place and Path(place).is_dir():
            return Path(place)
    raise UserError(
        "no data to run the experiment on: name its directory with --data or in PRESAGE_DATA"
    )


def _silent(done: int, total: int) -> None:
    """Nobody looks."""
