"""The share daemon of a node: processes come to its socket, and it gives them turns.

One thread, one loop. Who is next is decided in `turns`; this carries it out, counts and reports.
It keeps nothing that is not in files or in the pages its clients write, so it may die at any time:
clients go on without it and come back to the next one.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from presage.executors.node.shares.page import (
    DONE,
    MESSAGE,
    WANT,
    SharedPage,
    Slot,
    grant_message,
    read_hello,
    refusal,
    welcome,
)
from presage.executors.node.shares.terms import read_terms, socket_path
from presage.executors.node.shares.turns import DeviceTurns, ShareTerms
from presage.model.errors import UserError

__all__ = ["ShareDaemon"]

_SAMPLE_NS = 500_000_000
_SAMPLES = 21
"""Use is told for the last ten seconds."""
_IDLE_S = 0.5
_PRIORITY = -15
_MESSAGE = 1 << 12


@dataclass(slots=True, eq=False)
class _Visitor:
    """A process on a device, or somebody who asks."""

    socket: socket.socket
    pid: int
    uid: int
    share: str = ""
    device: str = ""
    slot: Slot | None = None
    counted_ns: int = 0
    """Of what it says it used, what was counted."""


@dataclass(slots=True)
class _ShareAccount:
    """A share on a device."""

    terms: ShareTerms
    page: SharedPage
    clients: list[_Visitor] = field(default_factory=list)
    counted_ns: int = 0
    """What it had in turns that are over, and what processes had that are gone."""
    gone_waited_ns: int = 0
    samples: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    """When, how much it had used, and how long it had waited."""

    @property
    def used_ns(self) -> int:
        each = (int(one.slot.used_ns) - one.counted_ns for one in self.clients if one.slot)
        return self.counted_ns + sum(each)

    @property
    def waited_ns(self) -> int:
        waited = (int(one.slot.waited_ns) for one in self.clients if one.slot)
        return self.gone_waited_ns + sum(waited)


class ShareDaemon:
    """Serves a directory of shares until it is told to stop."""

    def __init__(self, home: Path, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._home, self._clock = home, clock
        self._pages = home / "pages"
        self._accounts: dict[tuple[str, str], _ShareAccount] = {}
        self._turns: dict[str, DeviceTurns] = {}
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, _Visitor] = {}
        self._sampled = 0
        self._stopping = False
        with suppress(OSError):  # a change of turns waits for us; only root may
            os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
        self._listener = self._listen()
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._stop_read, selectors.EVENT_READ, None)

    # -- the loop -------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until `stop`."""
        try:
            while not self._stopping:
                for key, _ in self._selector.select(self._patience_s()):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.data is None:
                        self._stopping = True
                    else:
                        self._hear(key.data)
                self._give_turns()
                self._sample()

        finally:
            self._close()

    def stop(self) -> None:
        """End `run`; any thread, or a handler of signals, may say so."""
        with suppress(OSError):
            os.write(self._stop_write, b"x")

    def _listen(self) -> socket.socket:
        path = socket_path(self._home)
        for directory in (self._home, self._pages, path.parent):
            directory.mkdir(parents=True, exist_ok=True)
        self._pages.chmod(0o700)
        path.parent.chmod(0o711)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
            other.connect(str(path))
            raise UserError(f"a share daemon serves {self._home} already")
        with suppress(FileNotFoundError):
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o666)  # who may take which share is decided by who asks (SO_PEERCRED)
        listener.listen(128)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, None)
        return listener

    def _close(self) -> None:
        with suppress(OSError):
            socket_path(self._home).unlink()
        for one in list(self._clients.values()):
            one.socket.close()
        self._listener.close()
        self._selector.close()

    def _patience_s(self) -> float:
        now = self._clock()
        waits = [turns.wait_ns(now) for turns in self._turns.values()]
        return min((wait / 1e9 for wait in waits if wait is not None), default=_IDLE_S)

    # -- clients --------------------------------------------------------------------------------

    def _accept(self) -> None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid, uid, _ = struct.unpack("iII", raw)
            client = self._clients[connection.fileno()] = _Visitor(connection, pid, uid)
            self._selector.register(connection, selectors.EVENT_READ, client)

    def _hear(self, client: _Visitor) -> None:
        try:
            data = client.socket.recv(_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._leave(client)
        elif client.slot is not None:
            self._message(client, data)
        elif data.startswith(b"{"):
            self._answer(client, data)
        else:
            self._greet(client, data)

    def _message(self, client: _Visitor, data: bytes) -> None:
        if len(data) != MESSAGE.size or client.slot is None:
            return
        kind, value, end = MESSAGE.unpack(data)
        turns, now = self._turns[client.device], self._clock()
        if kind == WANT:
            turns.want(client, now)
        elif kind == DONE:
            used = self._used_since(client)
            kernel_ns = client.slot.kernel_ns
            held = turns.done(client, used, min(end, now), kernel_ns, wants=value > 0, now=now)
            account = self._accounts[client.device, client.share]
            account.counted_ns += used if held is None else held

    def _used_since(self, client: _Visitor) -> int:
        assert client.slot is not None
        used: int = client.slot.used_ns
        since, client.counted_ns = used - client.counted_ns, used
        return max(0, since)

    def _greet(self, client: _Visitor, data: bytes) -> None:
        """A process that wants to use a device. Its user must be the one the share is for."""
        hello = read_hello(data)
        terms = read_terms(self._home, hello[1]) if hello else None
        mine = (0, os.getuid())
        account = None
        if hello and terms and (terms.uid is None or client.uid in (terms.uid, *mine)):
            account = self._account(*hello, terms)
        number = account.page.seat(client.pid) if account else None
        if not hello or account is None or number is None:
            with suppress(OSError):
                client.socket.send(refusal())
            self._drop(client)
            return
        client.device, client.share = hello
        client.slot = account.page.slots[number]
        client.counted_ns = client.slot.used_ns
        account.counted_ns += client.counted_ns  # with a daemon before
        client.slot.until_ns = 0
        account.clients.append(client)
        self._turns[client.device].join(client, client.share, account.terms, self._clock())
        try:
            socket.send_fds(client.socket, [welcome(number)], [account.page.fd])
        except OSError:
            self._leave(client)

    def _account(self, device: str, share: str, terms: ShareTerms) -> _ShareAccount:
        known = self._accounts.get((device, share))
        if known is None:
            page = SharedPage(self._pages / f"{share}@{device}")
            for slot in page.slots:  # of a daemon before: who is gone holds nothing
                if slot.pid and not Path(f"/proc/{slot.pid}").exists():
                    slot.clear()
            known = self._accounts[device, share] = _ShareAccount(terms, page)
            self._turns.setdefault(device, DeviceTurns(self._clock()))
        known.terms = terms
        known.page.set_quota(terms.memory)
        return known

    def _leave(self, client: _Visitor) -> None:
        """A process is gone: its turn, and its memory, are free."""
        slot, self._clients = client.slot, self._clients
        if slot is not None:
            account = self._accounts[client.device, client.share]
            account.clients.remove(client)
            account.gone_waited_ns += slot.waited_ns
            used = self._used_since(client)
            account.counted_ns += used
            self._turns[client.device].leave(client, used, self._clock())
            if not any(other.slot is slot for other in account.clients):
                slot.clear()
        self._drop(client)

    def _drop(self, client: _Visitor) -> None:
        self._clients.pop(client.socket.fileno(), None)
        with suppress(KeyError, ValueError):
            self._selector.unregister(client.socket)
        client.socket.close()

    # -- turns ----------------------------------------------------------------------------------

    def _give_turns(self) -> None:
        for turns in self._turns.values():
            before = turns.holder
            grant = turns.next(self._clock())
            if isinstance(before, _Visitor) and before.slot and turns.holder is not before:
                before.slot.until_ns = 0  # it was passed over
            if grant is None or not isinstance(grant.seat, _Visitor) or grant.seat.slot is None:
                continue
            grant.seat.slot.grant(grant.until_ns)
            with suppress(OSError):  # it is gone, which its socket says next
                grant.seat.socket.send(grant_message(grant.until_ns))

    def _sample(self) -> None:
        now = self._clock()
        if now - self._sampled < _SAMPLE_NS:
            return
        self._sampled = now
        self._stopping |= not self._pages.is_dir()  # its directory was removed
        for key, account in list(self._accounts.items()):
            account.samples.append((now, account.used_ns, account.waited_ns))
            if not account.clients and read_terms(self._home, key[1]) is None:
                del self._accounts[key]  # the share is over
                self._turns[key[0]].forget(key[1])
                account.page.remove()

    # -- what people ask ------------------------------------------------------------------------

    def _answer(self, client: _Visitor, data: bytes) -> None:
        try:
            question = json.loads(data)
        except ValueError:
            question = {}
        if question.get("ask") == "reload" and client.uid in (0, os.getuid()):
            self._reload()
        answer = {"pid": os.getpid(), "shares": self._status(str(question.get("of", "")))}
        with suppress(OSError):
            client.socket.send(json.dumps(answer).encode())

    def _reload(self) -> None:
        for (device, share), account in self._accounts.items():
            terms = read_terms(self._home, share)
            if terms is not None and terms != account.terms:
                account.terms = terms
                account.page.set_quota(terms.memory)
                self._turns[device].change(share, terms)

    def _status(self, prefix: str) -> list[dict[str, Any]]:
        rows = []
        now = self._clock()
        for (device, share), account in sorted(self._accounts.items()):
            if not share.startswith(prefix):
                continue
            then, used, waited = account.samples[0] if account.samples else (now, 0, 0)
            passed = max(1, now - then)
            terms = account.terms
            rows.append(
                {
                    "share": share,
                    "device": device,
                    "request": terms.request,
                    "limit": terms.limit,
                    "weight": terms.weight,
                    "processes": len(account.clients),
                    "got": min(1.0, (account.used_ns - used) / passed),
                    "waited": (account.waited_ns - waited) / passed,
                    "used_s": account.used_ns / 1e9,
                    "waited_s": account.waited_ns / 1e9,
                    "memory_bytes": account.page.memory,
                    "memory_limit_bytes": terms.memory,
                }
            )
        return rows
