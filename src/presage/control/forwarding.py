"""Ports of jobs in browsers: which address names which port, who gets in, and with what.

A ticket in an address is exchanged for a cookie; both are good for one port of one job and are
no tokens of the API (`people/tickets.py`). How bytes and headers go to and fro is not known here.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from urllib.parse import unquote, urlencode, urlsplit

from presage.control.attaching import Attachment, attach, running
from presage.control.people.accounts import ANYBODY
from presage.control.people.tickets import COOKIE_S, TICKET_S, Signer
from presage.control.site.service import Service
from presage.model.errors import BadRequest, NotFound, Unauthorized
from presage.store.records import AuditEntry, JobRow, User

__all__ = ["KINDS", "PREFIX", "TICKET", "PortDoor", "PortPath"]

PREFIX = "/jobs/"
KINDS = ("ports", "absolute")
"""Whether a job's server is asked for what follows the prefix, or for the whole path."""
TICKET = "presage_ticket"
"""What the ticket is called in an address."""
_PATH = re.compile(r"/jobs/([a-z0-9][a-z0-9._-]{0,100})/(ports|absolute)/([1-9][0-9]{0,4})(/.*)")


@dataclass(frozen=True, slots=True)
class PortPath:
    """A port of a job, and what is asked of it."""

    job: str
    port: int
    prefix: str
    """The part of the path that is ours."""
    path: str
    """What the job's server is asked for, as it was written."""

    @classmethod
    def parse(cls, path: str) -> PortPath:
        """What a path names; raises what is wrong with it."""
        match = _PATH.fullmatch(path)
        if match is None:
            raise NotFound("there is nothing here; ports of jobs are at /jobs/ID/ports/PORT/")
        job, kind, port, rest = match.groups()
        if ".." in re.split(r"[/\\]", unquote(unquote(rest))):
            raise BadRequest("a path has no '..'")
        prefix = f"{PREFIX}{job}/{kind}/{port}"
        return cls(job, int(port), prefix, path if kind == "absolute" else rest)


class PortDoor:
    """Lets people in to ports of jobs."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._signer = Signer(service.layout.proxy_key)

    def address(self, user: User, row: JobRow, port: int, *, absolute: bool) -> tuple[str, float]:
        """An address for a browser, and until when it works; noted in the audit log. `absolute`:
        the job's server is asked for the whole path, since it was told where it is."""
        now, settings = time.time(), self._service.settings
        entry = AuditEntry(now, user.name, "open port", row.id, {"port": port})
        self._service.store.audit.add(entry)
        own, until = urlsplit(settings.url), now + TICKET_S
        host = f"[{own.hostname}]" if ":" in (own.hostname or "") else own.hostname
        base = settings.proxy_url or f"{own.scheme}://{host}:{settings.proxy_port}"
        ticket = self._signer.sign("ticket", user.name, row.id, port, until)
        below = f"{PREFIX}{row.id}/{KINDS[absolute]}/{port}/?{urlencode({TICKET: ticket})}"
        return f"{base.replace('{job}', row.id)}{below}", until

    def cookie(self, target: PortPath, ticket: str) -> str:
        """A cookie for a ticket."""
        user = self._signer.user("ticket", ticket, target.job, target.port)
        if user is None:
            text = "this address has expired; get another one: presage forward ID PORT --url"
            raise Unauthorized(text)
        until = time.time() + COOKIE_S
        return self._signer.sign("cookie", user, target.job, target.port, until)

    def enter(self, target: PortPath, cookie: str) -> tuple[JobRow, User]:
        """The job, if whoever has the cookie may still reach it."""
        name = self._signer.user("cookie", cookie, target.job, target.port)
        if name is None:
            raise Unauthorized("get an address with: presage forward ID PORT --url")
        accounts = self._service.accounts
        users = [ANYBODY] if accounts.open() else accounts.all()
        user = next((one for one in users if one.name == name), None)
        if user is None:
            raise Unauthorized("there is no such user any more")
        row = running(self._service, target.job, user)
        if target.port not in ((row.manifest or {}).get("ports") or ()):
            raise NotFound(f"job {row.id} has no port {target.port}")
        return row, user

    async def connect(self, target: PortPath, row: JobRow, user: User) -> Attachment:
        """A connection to the port, by the run's guardian."""
        return await attach(self._service, row, user.name, "", "0", {"port": target.port})
