"""Tells addresses of status changes: at least once, again and again until they say they got it.

What is to be sent is in the database, written in the same commit as the change itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from presage.control.site.service import Service
from presage.model.errors import PresageError
from presage.store.records import Delivery

if TYPE_CHECKING:
    import httpx

__all__ = ["deliver"]

log = logging.getLogger("presage.webhooks")

_TIMEOUT_S = 5.0
_MOST_TRIES = 20
_LONGEST_S = 3600.0
_KEPT_S = 7 * 86_400.0


async def deliver(service: Service) -> None:
    """Send what is due, for ever; only the server that decides does it."""
    forgot = 0.0
    async with AsyncExitStack() as stack:
        client: httpx.AsyncClient | None = None
        while True:
            await service.news.wait(1.0)
            if not service.live.leading.is_set():
                continue
            try:
                due = await asyncio.to_thread(service.store.outbox.due, time.time(), 50)
                if due and client is None:
                    client = await stack.enter_async_context(_client())
                if client is not None:
                    await asyncio.gather(*(_send(service, client, item) for item in due))
                if time.monotonic() - forgot > 3600:
                    forgot = time.monotonic()
                    await asyncio.to_thread(service.store.outbox.forget, time.time() - _KEPT_S)
            except PresageError as error:
                log.warning("webhooks wait: %s", error)
                await asyncio.sleep(1.0)


def _client() -> httpx.AsyncClient:
    import httpx  # a start is quicker without it and without the certificates it reads

    from presage._trust import trusted

    return httpx.AsyncClient(timeout=_TIMEOUT_S, follow_redirects=False, verify=trusted())


async def _send(service: Service, client: httpx.AsyncClient, item: Delivery) -> None:
    import httpx

    body = json.dumps({"delivery": item.id, **item.message.body}, allow_nan=False)
    headers = {"Content-Type": "application/json", "Presage-Delivery": str(item.id)}
    try:
        answer = await client.post(item.message.url, content=body, headers=headers)
        arrived = answer.is_success
    except (httpx.HTTPError, httpx.InvalidURL):
        arrived = False
    outbox, now = service.store.outbox, time.time()
    if arrived:
        await asyncio.to_thread(outbox.delivered, item.id, now)
        return
    tries = item.attempts + 1
    later = None if tries >= _MOST_TRIES else now + min(_LONGEST_S, 2.0**tries)
    if later is None:
        log.warning("webhook of job %s was given up after %d tries", item.message.job, tries)
    await asyncio.to_thread(outbox.postpone, item.id, later)
