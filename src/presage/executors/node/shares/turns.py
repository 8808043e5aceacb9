"""Who may use a device next, and for how long. Time is an argument, in ns; no clock, no I/O.

Each share has three accounts. `owed` grows with its request and pays for the turns it is entitled
to. `room` grows with its limit; who has none waits. `spent` is what it had beyond its request,
divided by its weight: the rest of the device goes to the one that had least of it.

The next turn is given a little before the one that runs ends, so that the device is not idle while
processes wake up; a turn is paid for when the next is given, and put right when it is over.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from presage.executors.node.shares.page import FOREVER
from presage.model.parts import divided

__all__ = ["DeviceTurns", "Grant", "ShareTerms", "promised"]

_MS = 1_000_000
_SHORT, _LONG = 10 * _MS, 40 * _MS
_KERNELS = 10
"""A turn is so many kernels long, between these bounds."""
_LEAD = 2 * _MS
"""So long before the end of a turn the next is given."""
_LAST = _MS
"""What is left to who had the device alone when somebody else wants it."""
_OWED_FOR = 250 * _MS
"""A share that did not use its request is owed that of so long, or of `_KERNELS`, not more."""
_BEHIND_FOR = 250 * _MS
"""Nobody counts as having had more of the rest than somebody who comes back, but by so much."""
_ROOM_FOR = 90 * _MS
_ROOM_KERNELS = 3
"""A share may pass its limit for a moment by what it left unused in so long, or in so many of the
longest kernels on the device."""
_LONGEST = 250 * _MS
"""A kernel that is longer counts as one of this length there."""
_LEAST = 4 * _MS
"""A turn shorter than this is not worth its change."""
_PATIENCE = 100 * _MS
"""Who does not give a turn back so long after its end is passed over: it may be stopped."""


@dataclass(frozen=True, slots=True)
class ShareTerms:
    """What a worker asked of each device it uses."""

    request: float = 0.0
    """The part of the device's time that it gets whenever it wants it."""
    limit: float = 1.0
    """The part of the device's time that it never passes."""
    memory: int = 0
    """Bytes it may hold; 0 for as many as there are."""
    weight: float = 1.0
    """How much of what is left over it gets, beside others."""
    hard: bool = True
    """Whether the limit holds, too, when nobody else wants the device."""
    uid: int | None = None
    """The user whose processes may take it; None for any."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A process may launch until then, in ns; FOREVER until somebody else wants the device."""

    seat: Hashable
    until_ns: int


@dataclass(slots=True, eq=False)
class _Sharer:
    """One share on the device."""

    terms: ShareTerms
    owed: float = 0.0
    room: float = 0.0
    spent: float = 0.0
    seats: list[_TurnTaker] = field(default_factory=list)
    """The next to have a turn first."""

    @property
    def wants(self) -> bool:
        return any(seat.wants for seat in self.seats)

    @property
    def limited(self) -> bool:
        return self.terms.limit < 1.0


@dataclass(slots=True, eq=False)
class _TurnTaker:
    """One process."""

    key: Hashable
    member: _Sharer
    wants: bool = False
    kernel_ns: int = 0
    entitled: bool = False
    """Whether the turn it has is paid from what it is owed."""
    since: int = 0
    """Since when it has the device to itself; nobody pays for a device that nobody else wants."""
    planned: int = 0
    """When its turn was to begin."""
    until: int = 0
    paid: int = 0
    """What was charged for a turn that is not over."""
    alone: bool = False
    """Whether a part of its turn was before anybody else wanted the device."""


class DeviceTurns:
    """The turns of one device."""

    def __init__(self, now: int) -> None:
        self._now = now
        self._members: dict[str, _Sharer] = {}
        self._seats: dict[Hashable, _TurnTaker] = {}
        self._holder: _TurnTaker | None = None
        self._ending: _TurnTaker | None = None
        """Who had the turn before, and is not done yet."""
        self._longer = False
        """Whether the holder has to be told that its turn ends later."""

    # -- what happens ---------------------------------------------------------------------------

    def join(self, seat: Hashable, share: str, terms: ShareTerms, now: int) -> None:
        """A process has come."""
        self._pass(now)
        member = self._members.setdefault(share, _Sharer(terms, room=terms.limit * _ROOM_FOR))
        member.terms = terms
        new = self._seats[seat] = _TurnTaker(seat, member)
        member.seats.append(new)

    def leave(self, seat: Hashable, used: int, now: int) -> None:
        """A process is gone, and with it its turn."""
        self.done(seat, used, now, 0, wants=False, now=now)
        gone = self._seats.pop(seat)
        gone.member.seats.remove(gone)

    def forget(self, share: str) -> None:
        """A share is over. Until then its accounts stay, or a process that comes anew would be
        granted afresh what the one before it had."""
        self._members.pop(share, None)

    def change(self, share: str, terms: ShareTerms) -> None:
        """A share is worth something else from now on."""
        if share in self._members:
            self._members[share].terms = terms
            self._level(self._members[share])

    def want(self, seat: Hashable, now: int) -> None:
        """A process has something to launch."""
        self._pass(now)
        one = self._seats[seat]
        if one is self._holder and now < one.until:
            return  # it asked before it saw its turn
        member = one.member
        if not member.wants:
            self._level(member)
        one.wants = True

    def _level(self, member: _Sharer) -> None:
        """Who left the rest to others, or was held to another limit, is not given all of it later.
        But who asks again a moment after its turn is behind by a turn or two, and stays so."""
        holding = self._holder.member if self._holder else None
        for one in self._members.values():
            if one is not member and (one.wants or one is holding):
                member.spent = max(member.spent, one.spent - _BEHIND_FOR / one.terms.weight)

    def done(
        self, seat: Hashable, used: int, end: int, kernel_ns: int, *, wants: bool, now: int
    ) -> int | None:
        """A process gave its turn back at `end`, and says how long it had the device. What it had
        by the clock of the daemon, since the turn before was over; None of a time alone."""
        self._pass(now)
        one = self._seats[seat]
        held = None
        if one.until:
            held = max(used and end - one.since, 0) if one.until != FOREVER else 0
            self._charge(one, held - one.paid)
            held = None if one.alone else held
        one.paid, one.until = 0, 0
        one.wants, one.kernel_ns = wants or (one.wants and one is self._ending), kernel_ns
        if one is self._ending:
            self._ending = None
            self._follow(end)
        if one is self._holder:
            self._holder = None
        return held

    def _follow(self, end: int) -> None:
        """The turn of the holder begins now that the one before is over."""
        holder = self._holder
        if holder is not None and holder.until != FOREVER:
            late = end - holder.planned
            holder.since = max(holder.since, end)
            if late > _LEAD:
                holder.until += late
                self._longer = True

    def _charge(self, one: _TurnTaker, used: int) -> None:
        member = one.member
        member.room -= used
        if one.entitled:
            member.owed -= used
        else:
            member.spent += used / member.terms.weight

    # -- what follows ---------------------------------------------------------------------------

    @property
    def holder(self) -> Hashable | None:
        """The process that has the device."""
        return self._holder.key if self._holder else None

    def next(self, now: int) -> Grant | None:
        """Who may go on, if that changes."""
        self._pass(now)
        holder = self._holder
        if holder is None:
            return self._pick(now, now)
        if self._longer:
            self._longer = False
            return Grant(holder.key, holder.until)
        if holder.until == FOREVER:
            return self._recall(holder, now)
        if now > holder.until + self._patience(holder):
            self._holder, self._ending = None, None
            return self._pick(now, now)
        if now >= holder.until - _LEAD and self._ending is None:
            self._charge_ahead(holder)
            return self._pick(now, holder.until)
        return None

    def wait_ns(self, now: int) -> int | None:
        """After how long to ask again if nothing happens; None for never."""
        holder = self._holder
        waits = [
            (_LEAST - member.room) / member.terms.limit
            for member in self._members.values()
            if member.wants and member.limited and member.room < _LEAST
        ]
        if holder is not None:
            if holder.until == FOREVER:
                return None
            lead = holder.until - _LEAD - now
            if lead > 0 and self._ending is None:
                return lead
            waits.append(holder.until + self._patience(holder) - now)
        return max(1, math.ceil(min(waits))) if waits else None

    def _charge_ahead(self, holder: _TurnTaker) -> None:
        ahead = max(0, holder.until - holder.since) - holder.paid
        if ahead > 0:
            self._charge(holder, ahead)
            holder.paid += ahead

    def _pick(self, now: int, start: int) -> Grant | None:
        """The next turn, which begins when the one that runs ends. The same process may have it:
        then its turn ends later."""
        running = self._holder
        if running is not None and not any(member.wants for member in self._members.values()):
            able = [running.member] if self._able(running.member) else []
        else:
            members = self._members.values()
            able = [
                one
                for one in members
                if (one.wants or (running and one is running.member)) and self._able(one)
            ]
        if not able:
            return None
        owed = [member for member in able if member.owed > 0 and member.terms.request > 0]
        if owed:
            member = max(owed, key=lambda one: (one.owed / one.terms.request, -one.spent))
        else:
            member = min(able, key=lambda one: one.spent)
        waiting = [seat for seat in member.seats if seat.wants]
        seat = waiting[0] if waiting or running is None else running
        member.seats.remove(seat)
        member.seats.append(seat)
        seat.entitled, seat.wants = bool(owed), False
        until = self._end(seat, start)
        if seat is not running:
            seat.since, seat.planned, seat.paid, seat.alone = now, start, 0, False
            # Who runs still does so, too, if the next gave its turn back before it began.
            self._ending = running or (None if seat is self._ending else self._ending)
        self._holder, seat.until = seat, until
        seat.alone |= until == FOREVER
        return Grant(seat.key, until)

    def _recall(self, holder: _TurnTaker, now: int) -> Grant | None:
        """End the turn of one that had the device alone."""
        if not any(seat.wants for seat in self._seats.values() if seat is not holder):
            return None
        holder.until, holder.since, holder.planned, holder.paid = now + _LAST, now, now, 0
        return Grant(holder.key, holder.until)

    def _patience(self, holder: _TurnTaker) -> int:
        return max(_PATIENCE, 4 * holder.kernel_ns)

    def _pass(self, now: int) -> None:
        passed, self._now = max(0, now - self._now), max(now, self._now)
        # Who waits for long kernels keeps what came due meanwhile.
        kernel = min(_LONGEST, max((seat.kernel_ns for seat in self._seats.values()), default=0))
        owed_for = max(_OWED_FOR, _KERNELS * kernel)
        room_for = max(_ROOM_FOR, _ROOM_KERNELS * kernel)
        for member in self._members.values():
            terms = member.terms
            member.owed = min(member.owed + passed * terms.request, owed_for * terms.request)
            member.room = min(
                member.room + passed * terms.limit, max(_LEAST, room_for * terms.limit)
            )

    def _able(self, member: _Sharer) -> bool:
        if not member.limited or member.room >= _LEAST:
            return True
        return not member.terms.hard and not any(
            other.wants for other in self._members.values() if other is not member
        )

    def _end(self, seat: _TurnTaker, start: int) -> int:
        member = seat.member
        # Who still runs will want it again, for all we know: nobody is alone before that is said.
        running = (self._holder or self._ending or seat) is not seat
        others = running or any(one.wants for one in self._seats.values() if one is not seat)
        free = not member.limited or not member.terms.hard
        if free and not others:
            return FOREVER
        length = float(max(_SHORT, min(_LONG, _KERNELS * seat.kernel_ns)))
        if member.limited:
            length = min(length, max(_LEAST, member.room))
        return start + int(length)


def promised(terms: Sequence[ShareTerms]) -> list[float]:
    """What each share gets of a device when all want it all the time: its request, and of the rest
    by weight as much as its limit allows. Where requests add up to more than the device, each
    gets its part of it."""
    return divided(
        [one.request for one in terms],
        [one.limit for one in terms],
        [one.weight for one in terms],
    )
