"""News for one who listens: status changes of jobs and changes of alerts, in order, as far as the
listener may know of them. None stands for a second in which there were none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence

from presage.control.board import ENDED
from presage.control.health.alerts import Alert
from presage.control.people.accounts import UserRole, may_see
from presage.control.site.service import Service
from presage.control.views.diagnosis import AlertSight
from presage.store.records import Transition, User

__all__ = ["alert_changes", "status_changes"]

_LOOK_S = 1.0
"""A server that does not decide hears of changes by looking."""


async def status_changes(
    service: Service, me: User, job: str | None, since: int
) -> AsyncIterator[Transition | None]:
    """Those after a number: of one job until it is over, or of all that `me` may see."""
    jobs, visible = service.store.jobs, dict[str, bool]()

    def read() -> Sequence[Transition]:
        if job is not None:
            return [item for item in jobs.transitions(job) if item.number > since]
        changes = jobs.transitions_since(since)
        if me.role == UserRole.USER:
            for name in {item.job for item in changes} - visible.keys():
                row = jobs.get(name)
                visible[name] = row is not None and may_see(me, row)
        return changes

    while True:
        changes = await asyncio.to_thread(read)
        for item in changes:
            since = item.number
            if visible.get(item.job, True):
                yield item
            if job is not None and item.status in ENDED:
                return
        if not changes:
            yield None
            await service.news.wait(_LOOK_S)


async def alert_changes(
    service: Service, me: User, job: str | None
) -> AsyncIterator[Alert | None]:
    """Open alerts, then alerts as they appear and end: of one job, or of all."""
    book, sees = service.health.book, AlertSight(service, me)
    since = book.latest

    def shown(alerts: Iterable[Alert]) -> list[Alert]:
        return [one for one in sees.those(alerts) if job in (None, one.finding.job)]

    for alert in await asyncio.to_thread(lambda: shown(book.open())):
        yield alert
    while True:
        news = await asyncio.to_thread(book.news, since)
        if news:
            since = news[-1].number
            for alert in await asyncio.to_thread(shown, [one.alert for one in news]):
                yield alert
        else:
            yield None
        await asyncio.sleep(_LOOK_S)
