"""Which model answers: versions, a champion among them, and challengers that must be better on the
latest runs before they replace it.

In what a server learned (`Knowledge`), each quantity has a document for every version, champion or
refused, and an index that says who answers. No version is ever deleted. Version 0 is what the
estimators say without own runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import log

import numpy as np

from presage.core.ports import Entry, Knowledge
from presage.foresee.own import OwnRun, OwnRuns
from presage.model.codec import decode, encode
from presage.model.errors import UserError
from presage.model.estimate import Estimate

__all__ = ["QUANTITIES", "Champions", "EstimateDrift", "Standing", "Version", "error_of"]

QUANTITIES = {"memory": "MiB", "step_time": "ms", "utilization": "share", "runtime": "s"}
"""What is learned from own runs, and in which unit."""

_JUDGES = 0.25
"""The part of the runs, the latest, that decide; a challenger has not seen them."""
_LEAST_JUDGES = 5
_MOST_RUNS = 5000
"""Runs that are kept, the latest."""
_BETTER = 0.98
"""A challenger's error must be at most this part of the champion's."""
_WATCHED = 30
"""Estimates that drift is judged by, the latest."""
_LEAST_WATCHED = 5
_DRIFTED = 2.0
"""Estimates drift when they are off by this many times what the champion was off when it was
chosen, and by at least `_ALLOWED`."""
_ALLOWED = 0.3
_UNTIL = "models/learned-until"
_RAN_OUT = "models/memory/ran-out"


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
class EstimateDrift:
    """How far the latest estimates of a quantity were off."""

    judged: int
    error: float
    """Mean distance in logarithms: 0.1 is about 10 %."""
    inside: float
    """The share of truths between p10 and p90."""
    drifted: bool


class Champions:
    """The models of own runs. One thread writes, any may read."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._lesson: list[Entry] | None = None
        """What the present lesson is going to write."""
        self._notes: tuple[int, dict[str, float]] | None = None
        """Workloads that ran out of memory, and the epoch under which that was read."""

    @property
    def epoch(self) -> int:
        """Another one when another server may have learned."""
        return self._knowledge.epoch

    def standing(self, quantity: str) -> Standing:
        """Who answers, and all versions there are."""
        name = f"{_of(quantity)}/index"
        body = self._knowledge.get(name)
        if body is None:
            return Standing()
        try:
            standing: Standing = decode(Standing, json.loads(body))
        except (ValueError, TypeError) as error:
            raise UserError(f"{name} in the store cannot be read: {error}") from None
        return standing

    def model(self, quantity: str, number: int | None = None) -> OwnRuns:
        """A version, or the champion."""
        if number is None:
            number = self.standing(quantity).champion
        if number == 0:
            return OwnRuns(QUANTITIES[quantity])
        body = self._knowledge.get(f"{_of(quantity)}/{number}")
        if body is None:
            raise UserError(f"there is no version {number} of {quantity}; see `presage models`")
        return OwnRuns.from_json(json.loads(body))

    @contextmanager
    def lesson(self, until: int) -> Iterator[None]:
        """What is added, judged and noted in the block is written at its end, in one transaction
        with the number of the latest end that it was learned from."""
        entries = self._lesson = [_entry(_UNTIL, until)]
        try:
            yield
            self._knowledge.write(*entries)
        except BaseException:
            self._notes = None
            raise
        finally:
            self._lesson = None

    def learned_until(self) -> int:
        """The number of the latest end that was learned from; 0 before the first."""
        return int(self._knowledge.get(_UNTIL) or 0)

    def add(self, quantity: str, run: OwnRun) -> None:
        """Keep a run to learn from."""
        self._write(_entry(f"{_of(quantity)}/runs", encode(run), _MOST_RUNS))

    def runs(self, quantity: str) -> list[OwnRun]:
        """The latest runs that were kept, oldest first."""
        lines = self._knowledge.tail(f"{_of(quantity)}/runs", _MOST_RUNS)
        return [decode(OwnRun, json.loads(line)) for line in lines]

    def unlearned(self, quantity: str) -> int:
        """Runs that were kept since a version was fitted."""
        versions = self.standing(quantity).versions
        since = versions[-1].at if versions else float("-inf")
        return sum(run.at > since for run in self.runs(quantity))

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
        standing = replace(standing, versions=(*standing.versions, version))
        if accepted and not standing.pinned:
            standing = _crowned(standing, number)
        model = _entry(f"{_of(quantity)}/{number}", kept.to_json())
        self._write(model, _index(quantity, standing))
        return version

    def judge(self, quantity: str, estimate: Estimate, actual: float) -> None:
        """Keep how far an estimate was off that was made before a run."""
        if min(estimate.p50, actual) > 0:
            off = abs(log(actual / estimate.p50))
            inside = estimate.p10 <= actual <= estimate.p90
            self._write(_entry(f"{_of(quantity)}/judged", [round(off, 6), inside], _WATCHED))

    def drift(self, quantity: str) -> EstimateDrift | None:
        """How far the latest estimates were off; None before one was judged."""
        lines = self._knowledge.tail(f"{_of(quantity)}/judged", _WATCHED)
        if not lines:
            return None
        judged = [json.loads(line) for line in lines]
        error, inside = (float(of) for of in np.mean(judged, axis=0))
        least = max(_ALLOWED, _DRIFTED * self._promised(quantity))
        # how long jobs run is up to their owners: nobody need look at that
        drifted = len(judged) >= _LEAST_WATCHED and error > least and quantity != "runtime"
        return EstimateDrift(len(judged), error, inside, drifted)

    def _promised(self, quantity: str) -> float:
        standing = self.standing(quantity)
        for version in standing.versions:
            if version.number == standing.champion and version.error is not None:
                return version.error
        return _ALLOWED

    def ran_out(self, signature: str, mib: float) -> None:
        """Remember that a workload ran out of memory with so much of it."""
        notes = self._ran_out()
        notes[signature] = max(mib, notes.get(signature, 0.0))
        self._write(_entry(_RAN_OUT, notes))

    def not_enough(self, signature: str) -> float:
        """The most memory with which a workload ran out of it, in MiB; 0 if it never did."""
        return self._ran_out().get(signature, 0.0)

    def _ran_out(self) -> dict[str, float]:
        epoch, known = self.epoch, self._notes
        if known is None or known[0] != epoch:
            known = self._notes = epoch, json.loads(self._knowledge.get(_RAN_OUT) or "{}")
        return known[1]

    def pin(self, quantity: str, number: int) -> Standing:
        """Have a version answer until `unpin`."""
        standing = self.standing(quantity)
        there = [0, *(one.number for one in standing.versions)]
        if number not in there:
            raise UserError(
                f"{quantity} has no version {number}; there are {', '.join(map(str, there))}"
            )
        standing = replace(_crowned(standing, number), pinned=True)
        self._write(_index(quantity, standing))
        return standing

    def unpin(self, quantity: str) -> Standing:
        """Let challengers replace the champion again."""
        standing = replace(self.standing(quantity), pinned=False)
        self._write(_index(quantity, standing))
        return standing

    def rollback(self, quantity: str) -> Standing:
        """Have the champion before the present one answer again, pinned."""
        standing = self.standing(quantity)
        if not standing.before:
            raise UserError(f"{quantity} has had no other champion; see `presage models`")
        before = standing.before[-1]
        standing = replace(standing, champion=before, before=standing.before[:-1], pinned=True)
        self._write(_index(quantity, standing))
        return standing

    def _write(self, *entries: Entry) -> None:
        if self._lesson is None:
            self._knowledge.write(*entries)
        else:
            self._lesson += entries


def _of(quantity: str) -> str:
    """Where what was learned of a quantity is."""
    if quantity not in QUANTITIES:
        raise UserError(f"nothing is learned of '{quantity}'; of {', '.join(QUANTITIES)} is")
    return f"models/{quantity}"


def _entry(name: str, body: object, keep: int = 1) -> Entry:
    return Entry(name, json.dumps(body, allow_nan=False).encode(), keep)


def _index(quantity: str, standing: Standing) -> Entry:
    return _entry(f"{_of(quantity)}/index", encode(standing))


def error_of(model: OwnRuns, runs: Sequence[OwnRun]) -> float | None:
    """Mean distance of prediction and truth in logarithms; None if it knows of no run."""
    errors = []
    for run in runs:
        estimate = _answer(model, run)
        if estimate is not None and run.actual > 0:
            errors.append(abs(log(run.actual / max(estimate.p50, 1e-12))))
    return float(np.mean(errors)) if errors else None


def _answer(model: OwnRuns, run: OwnRun) -> Estimate | None:
    return model.predict(run.signature, run.device, run.foreseen, run.sizes)


def _crowned(standing: Standing, number: int) -> Standing:
    if number == standing.champion:
        return standing
    return replace(standing, champion=number, before=(*standing.before, standing.champion))
