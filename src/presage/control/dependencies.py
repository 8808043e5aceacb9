"""What jobs wait for: from what people write (ids, prefixes, names) to ids, and what those that
are over already mean. The core knows only who is not over; the rows of the store know the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from presage.core.gates import still_after, verdict
from presage.core.state import State
from presage.manifest.schema import After
from presage.model import event as ev
from presage.model.errors import Conflict, PresageError, UserError
from presage.model.job import Dependency
from presage.store.records import ArrayRow, JobRow
from presage.store.sql import SqlStore

__all__ = ["found", "resolved_after", "settle_dependencies"]

_OVER = ("COMPLETED", "FAILED", "CANCELLED")
_SHOWN = 3

Sees = Callable[[JobRow | ArrayRow], bool]


def resolved_after(after: After, store: SqlStore, sees: Sees) -> After:
    """The same jobs and arrays by their ids; `sees` says which ones this user may know of."""
    known: dict[str, str] = {}

    def ids(references: Sequence[str]) -> list[str]:
        for one in references:
            if one not in known:
                known[one] = found(one, store, sees).id
        return list(dict.fromkeys(known[one] for one in references))

    return After(ok=ids(after.ok), any=ids(after.any), failed=ids(after.failed))


def found(reference: str, store: SqlStore, sees: Sees) -> JobRow | ArrayRow:
    """The job or array of an id; else the newest of a name; else the one whose id begins so."""
    exact = store.arrays.get(reference) or store.jobs.get(reference)
    if exact is not None and sees(exact) and not _is_removed(exact):
        return exact
    rows: list[JobRow | ArrayRow] = [*store.arrays.like(reference), *store.jobs.like(reference)]
    rows = sorted(filter(sees, rows), key=lambda row: -row.seq)
    if named := [row for row in rows if row.name == reference]:
        return named[0]
    if len(rows) == 1:
        return rows[0]
    if not rows:
        raise UserError(
            f"after: there is no job {reference[:80]!r}; `presage ps --all` lists them"
        )
    some = ", ".join(row.id for row in rows[:_SHOWN])
    raise UserError(
        f"after: several jobs begin with {reference[:80]!r} ({some}, …); write more of it"
    )


def _is_removed(row: JobRow | ArrayRow) -> bool:
    return isinstance(row, JobRow) and row.removed_at is not None


def settle_dependencies(
    facts: Sequence[ev.Fact], state: State, store: SqlStore
) -> Sequence[ev.Fact] | PresageError:
    """Submissions without the dependencies that are met; or why one of them cannot be. For the
    deciding thread: what is not over now is known to the state when the facts are applied."""
    left: dict[tuple[Dependency, ...], tuple[Dependency, ...]] = {}
    settled: list[ev.Fact] = []
    for fact in facts:
        if isinstance(fact, ev.JobSubmitted) and fact.spec.after:
            after = fact.spec.after
            if after not in left:
                open_ = []
                for one in after:
                    met = state.gates.alive(one.job, state.jobs) or _is_met(one, store)
                    if isinstance(met, PresageError):
                        return met
                    if state.gates.alive(one.job, state.jobs):
                        open_.append(one)
                left[after] = tuple(open_)
            fact = replace(cast(Any, fact), spec=still_after(fact.spec, left[after]))
        settled.append(fact)
    return settled


def _is_met(one: Dependency, store: SqlStore) -> bool | PresageError:
    """What a dependency on something that is over comes to."""
    row = store.jobs.get(one.job)
    if row is not None and not _is_removed(row):
        statuses = {row.status}
    elif store.arrays.get(one.job) is not None:
        statuses = set(store.arrays.counts([one.job])[one.job].statuses)
    else:
        return UserError(f"after: there is no job {one.job[:80]!r} any more")
    if not statuses <= set(_OVER):
        return Conflict(f"after: {one.job} is not known to the scheduler; try again")
    if verdict(one.on, statuses == {"COMPLETED"}, over=True):
        return True
    how = "ended well" if statuses == {"COMPLETED"} else "did not end well"
    return Conflict(f"after: {one.job} {how}, so that `{one.on}` can never be met")
