"""Which model answers: versions on disk, a champion among them, and challengers that must be
better on the latest runs before they replace it.

Each quantity has a folder with a file for every version, champion or refused, and an index that
says who answers. Files are written whole or not at all; nothing is ever deleted. Version 0 is what
the estimators say without own runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import log
from pathlib import Path
from typing import Any

import numpy as np

from presage.foresee.own import OwnRun, OwnRuns
from presage.model.codec import decode, encode
from presage.model.errors import UserError
from presage.model.estimate import Estimate

__all__ = ["QUANTITIES", "Champions", "Drift", "Standing", "Version", "error_of"]

QUANTITIES = {"memory": "MiB", "step_time": "ms", "utilization": "share"}
"""What is learned from own runs, and in which unit."""

_JUDGES = 0.25
"""The part of the runs, the latest, that decide; a challenger has not seen them."""
_LEAST_JUDGES = 5
_MOST_RUNS = 5000
"""Runs that are read back, the latest."""
_BETTER = 0.98
"""A challenger's error must be at most this part of the champion's."""
_WATCHED = 30
"""Estimates that drift is judged by, the latest."""
_LEAST_WATCHED = 5
_DRIFTED = 2.0
"""Estimates drift when they are off by this many times what the champion was off when it was
chosen, and by at least `_ALLOWED`."""
_ALLOWED = 0.3
_LINE = 100
"""Bytes that a line on an estimate has at most."""


@dataclass(frozen=True, slots=True)
class Version:
    """A model that was fitted, and how it did."""

    number: int
    at: float
    """When it was fitted, in seconds since 1970."""
    runs: int
    error: float | None
    """Mean error on the latest runs, none of which it had seen: 0.1 is about 10 %."""
    champion_error: float | None
    """Of the champion of that time, on the same runs."""
    accepted: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """Who answers for a quantity."""

    champion: int = 0
    pinned: bool = False
    """Somebody chose it: challengers are judged and kept, but do not replace it."""
    before: tuple[int, ...] = ()
    """Champions before, the latest last."""
    versions: tuple[Version, ...] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class Drift:
    """How far the latest estimates of a quantity were off."""

    judged: int
    error: float
    """Mean distance in logarithms: 0.1 is about 10 %."""
    inside: float
    """The share of truths between p10 and p90."""
    drifted: bool


class Champions:
    """The models of own runs in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def standing(self, quantity: str) -> Standing:
        """Who answers, and all versions there are."""
        path = self._known(quantity) / "index.json"
        if not path.is_file():
            return Standing()
        try:
            found: Standing = decode(Standing, json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{path} cannot be read: {error}; restore it or remove it") from None
        return found

    def model(self, quantity: str, number: int | None = None) -> OwnRuns:
        """A version, or the champion."""
        if number is None:
            number = self.standing(quantity).champion
        if number == 0:
            return OwnRuns(QUANTITIES[quantity])
        path = self._known(quantity) / f"{number}.json"
        try:
            return OwnRuns.from_json(json.loads(path.read_bytes()))
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {error}") from None

    def add(self, quantity: str, run: OwnRun) -> None:
        """Keep a run to learn from; when this returns, it is on the disk."""
        self._append(quantity, "runs.jsonl", encode(run))

    def runs(self, quantity: str) -> list[OwnRun]:
        """The latest runs that were kept, oldest first; a line that a crash tore is left out."""
        path = self._known(quantity) / "runs.jsonl"
        try:
            lines = path.read_bytes().splitlines()[-_MOST_RUNS:]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
        found: list[OwnRun] = []
        for line in lines:
            with suppress(ValueError, TypeError):
                found.append(decode(OwnRun, json.loads(line)))
        return found

    def challenge(
        self, quantity: str, runs: Sequence[OwnRun], at: float, challenger: OwnRuns | None = None
    ) -> Version | None:
        """Fit a challenger on all but the latest runs and judge it on those; a better one is
        fitted again on all runs and answers from now on. None when there are too few runs.

        `challenger` is one that somebody made elsewhere: it is judged and kept as it is.
        """
        ordered = sorted(runs, key=lambda run: run.at)
        if len(ordered) < 2 * _LEAST_JUDGES:
            return None
        standing = self.standing(quantity)
        since = next((v.at for v in standing.versions if v.number == standing.champion), 0.0)
        unseen = sum(run.at > since for run in ordered)  # by the champion
        judges = max(_LEAST_JUDGES, min(round(_JUDGES * len(ordered)), unseen))
        past, latest = ordered[:-judges], ordered[-judges:]
        candidate = challenger or OwnRuns.fit(past, QUANTITIES[quantity])
        champion = self.model(quantity)
        held = error_of(champion, latest)
        same = [run for run in latest if _answer(champion, run) is not None] or latest
        error = error_of(candidate, same)
        answers = all(_answer(candidate, run) is not None for run in same)
        accepted = error is not None and answers and (held is None or error <= _BETTER * held)
        kept = candidate
        if accepted and challenger is None:
            kept = OwnRuns.fit(ordered, QUANTITIES[quantity])
        number = max((one.number for one in standing.versions), default=0) + 1
        note = "" if accepted else "not better on the latest runs"
        if accepted and standing.pinned:
            note = f"better, but version {standing.champion} is pinned"
        version = Version(number, at, len(ordered), error, held, accepted, note)
        self._write(quantity, f"{number}.json", kept.to_json())
        standing = replace(standing, versions=(*standing.versions, version))
        if accepted and not standing.pinned:
            standing = _crowned(standing, number)
        self._write(quantity, "index.json", encode(standing))
        return version

    def judge(self, quantity: str, estimate: Estimate, actual: float) -> None:
        """Keep how far an estimate was off that was made before a run."""
        if min(estimate.p50, actual) > 0:
            off = abs(log(actual / estimate.p50))
            inside = estimate.p10 <= actual <= estimate.p90
            self._append(quantity, "judged.jsonl", [round(off, 6), inside])

    def drift(self, quantity: str) -> Drift | None:
        """How far the latest estimates were off; None before one was judged."""
        judged = self._judged(quantity)
        if not judged:
            return None
        error, inside = (float(of) for of in np.mean(judged, axis=0))
        least = max(_ALLOWED, _DRIFTED * self._promised(quantity))
        return Drift(len(judged), error, inside, len(judged) >= _LEAST_WATCHED and error > least)

    def _promised(self, quantity: str) -> float:
        standing = self.standing(quantity)
        for version in standing.versions:
            if version.number == standing.champion and version.error is not None:
                return version.error
        return _ALLOWED

    def _judged(self, quantity: str) -> list[tuple[float, float]]:
        path = self._known(quantity) / "judged.jsonl"
        try:
            with path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LINE * _WATCHED))
                lines = file.read().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
        found = []
        for line in lines:
            with suppress(ValueError, TypeError):  # torn, by a crash or by where we began to read
                off, inside = json.loads(line)
                found.append((float(off), float(inside)))
        return found[-_WATCHED:]

    def ran_out(self, signature: str, mib: float) -> None:
        """Remember that a workload ran out of memory with so much of it."""
        notes = self._notes()
        notes[signature] = max(mib, notes.get(signature, 0.0))
        self._write("memory", "ran-out.json", notes)

    def not_enough(self, signature: str) -> float:
        """The most memory with which a workload ran out of it, in MiB; 0 if it never did."""
        return self._notes().get(signature, 0.0)

    def _notes(self) -> dict[str, float]:
        try:
            found = json.loads((self.folder / "memory" / "ran-out.json").read_bytes())
            return {str(name): float(mib) for name, mib in found.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def pin(self, quantity: str, number: int) -> Standing:
        """Have a version answer until `unpin`."""
        standing = self.standing(quantity)
        there = [0, *(one.number for one in standing.versions)]
        if number not in there:
            raise UserError(
                f"{quantity} has no version {number}; there are {', '.join(map(str, there))}"
            )
        standing = replace(_crowned(standing, number), pinned=True)
        self._write(quantity, "index.json", encode(standing))
        return standing

    def unpin(self, quantity: str) -> Standing:
        """Let challengers replace the champion again."""
        standing = replace(self.standing(quantity), pinned=False)
        self._write(quantity, "index.json", encode(standing))
        return standing

    def rollback(self, quantity: str) -> Standing:
        """Have the champion before the present one answer again, pinned."""
        standing = self.standing(quantity)
        if not standing.before:
            raise UserError(f"{quantity} has had no other champion; see `presage models`")
        before = standing.before[-1]
        standing = replace(standing, champion=before, before=standing.before[:-1], pinned=True)
        self._write(quantity, "index.json", encode(standing))
        return standing

    def _known(self, quantity: str) -> Path:
        if quantity not in QUANTITIES:
            raise UserError(f"nothing is learned of '{quantity}'; of {', '.join(QUANTITIES)} is")
        return self.folder / quantity

    def _append(self, quantity: str, name: str, body: object) -> None:
        path = self._known(quantity) / name
        line = json.dumps(body, allow_nan=False) + "\n"
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with path.open("a", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from None

    def _write(self, quantity: str, name: str, body: Mapping[str, Any] | Any) -> None:
        folder = self._known(quantity)
        draft = folder / f".{name}.{os.getpid()}.part"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with draft.open("w", encoding="utf-8") as file:
                json.dump(body, file, allow_nan=False)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(folder / name)
        except OSError as error:
            raise UserError(f"cannot write {folder / name}: {error.strerror or error}") from None


def error_of(model: OwnRuns, runs: Sequence[OwnRun]) -> float | None:
    """Mean distance of prediction and truth in logarithms; None if it knows of no run."""
    found = []
    for run in runs:
        estimate = _answer(model, run)
        if estimate is not None and run.actual > 0:
            found.append(abs(log(run.actual / max(estimate.p50, 1e-12))))
    return float(np.mean(found)) if found else None


def _answer(model: OwnRuns, run: OwnRun) -> Estimate | None:
    return model.predict(run.signature, run.device, run.foreseen, run.sizes)


def _crowned(standing: Standing, number: int) -> Standing:
    if number == standing.champion:
        return standing
    return replace(standing, champion=number, before=(*standing.before, standing.champion))
