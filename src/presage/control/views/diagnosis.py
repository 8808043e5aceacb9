"""What is wrong, as far as somebody may know it: alerts and suspicions as the API answers them.

Who may not see all jobs sees the trouble of the jobs that are theirs, and no other job's name.
Nothing is detected here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from presage.control.health.alerts import Alert
from presage.control.people.accounts import UserRole, may_see
from presage.control.site.service import Service
from presage.control.views.ahead import failure_view
from presage.core.state import State
from presage.model.codec import encode
from presage.model.errors import NotFound, PresageError
from presage.observe.health.trouble import Trouble
from presage.store.records import JobRow, User

__all__ = ["AlertSight", "alert_texts", "alert_view", "diagnose"]

_CLUSTER = "cluster"
_MOST = 20


def diagnose(service: Service, me: User, subject: str) -> dict[str, Any]:
    """What is wrong with a job, a node, or with everything: `cluster`."""
    name, row, concerns = _resolved(service, subject, me)
    health, sees = service.health, AlertSight(service, me)
    opened = [one for one in sees.those(health.book.open()) if concerns(one.finding)]
    over = [one for one in sees.those(health.book.over()) if concerns(one.finding)]
    told = {one.finding.key for one in opened}
    suspected = [
        one
        for one in health.suspicions()
        if concerns(one) and one.key not in told and sees.one(one)
    ]
    suspected.sort(key=lambda one: -one.probability)
    return {
        "subject": name,
        "runs": health.watched()["runs"],
        "alerts": [alert_view(one) for one in opened],
        "suspected": [_trouble_view(one) for one in suspected[:_MOST]],
        "over": [alert_view(one) for one in over[:_MOST]],
        "failure": failure_view(service, row) if row is not None else None,
    }


def alert_texts(service: Service, me: User) -> list[str]:
    """What somebody should look at, a sentence each."""
    texts = service.learner.alerts()
    opened = 0 if me.role == UserRole.USER else len(service.health.book.open())
    if opened:
        about = "1 thing is" if opened == 1 else f"{opened} things are"
        texts["health"] = f"{about} in trouble: see Alerts, or `presage diagnose cluster`."
    return [*service.mistakes.alerts(), *texts.values()]


def alert_view(alert: Alert) -> dict[str, Any]:
    """An alert as the API answers with it."""
    return {
        **_trouble_view(alert.finding),
        "id": alert.id,
        "raised_at": alert.raised_at,
        "seen_at": alert.seen_at,
        "cleared_at": alert.cleared_at,
        "cleared": alert.cleared,
        "done": list(alert.done),
    }


def _trouble_view(trouble: Trouble) -> dict[str, Any]:
    """Trouble that is not told, or the trouble of an alert."""
    return {
        "id": "",
        "kind": trouble.kind.value,
        "subject": str(trouble.subject),
        "probability": round(trouble.probability, 4),
        "text": trouble.text,
        "action": trouble.action,
        "evidence": [{"at": [], "values": [], **encode(one)} for one in trouble.evidence],
        "job": trouble.job,
        "attempt": trouble.attempt,
        "node": trouble.node,
        **dict.fromkeys(("raised_at", "seen_at", "cleared_at")),
        "cleared": "",
        "done": [],
    }


class AlertSight:
    """What somebody may see."""

    def __init__(self, service: Service, me: User) -> None:
        self._service, self._me = service, me
        self._jobs: dict[str, bool] = {}

    def those(self, alerts: Iterable[Alert]) -> list[Alert]:
        """The alerts among these that are for the user."""
        return [one for one in alerts if self.one(one.finding)]

    def one(self, trouble: Trouble) -> bool:
        """Whether the user may know of it."""
        if self._me.role != UserRole.USER:
            return True
        job = trouble.job
        if job and job not in self._jobs:
            row = self._service.store.jobs.get(job)
            self._jobs[job] = row is not None and may_see(self._me, row)
        return bool(job) and self._jobs[job]


def _resolved(
    service: Service, subject: str, me: User
) -> tuple[str, JobRow | None, Callable[[Trouble], bool]]:
    """What is asked about, in words; the job, if it is one; whether some trouble is part of it."""
    if subject == _CLUSTER:
        return _CLUSTER, None, lambda trouble: True

    def nodes(state: State) -> set[str]:
        return set(state.capacity.index)

    try:
        if subject in service.live.read(nodes):
            return f"node {subject}", None, lambda trouble: trouble.node == subject
    except PresageError:
        pass  # this server does not decide
    try:
        row = service.seen(subject, me)
    except NotFound as error:
        text = f"{error}; there is no node of that name either ('cluster' is everything)"
        raise NotFound(text) from None
    return f"job {row.id}", row, lambda trouble: trouble.job == row.id
