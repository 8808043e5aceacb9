"""The parts of a running server, in one value that routes are given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from presage.control.advisors import Advisor
from presage.control.advisors.failing import Failing
from presage.control.advisors.health import HealthAdvisor
from presage.control.advisors.judging import Judging
from presage.control.advisors.learning import Learner
from presage.control.advisors.needs import NeedsEstimator
from presage.control.advisors.pruning import Pruning
from presage.control.advisors.ratio import RatioAdvisor
from presage.control.advisors.runner import Runner
from presage.control.advisors.starts import StartTimes
from presage.control.advisors.unattended import Unattended
from presage.control.at_risk import Risks
from presage.control.attendance import Attendance
from presage.control.board import ENDED
from presage.control.deciding import Deciders
from presage.control.dependencies import found
from presage.control.ends import StoredEnds
from presage.control.history import ClusterHistory, HistoryRecorder
from presage.control.kernel import Live
from presage.control.measured import StoredTelemetry
from presage.control.mistakes import PolicyMistakes
from presage.control.news import News
from presage.control.people.access import SubmissionRules
from presage.control.people.accounts import Accounts, may_change, may_see
from presage.control.people.unix_users import UnixUsers
from presage.control.recent import Recent, RecentJob
from presage.control.records.results import JobResults
from presage.control.records.retention import Retention
from presage.control.records.tracking import Tracker
from presage.control.records.usage import Accountant
from presage.control.requests import Requests
from presage.control.resolver import resolve, unknown_job
from presage.control.seat import Seat, is_here
from presage.control.site.executors import make_executor
from presage.control.site.files import take_over_files
from presage.control.site.settings import Settings, is_loopback
from presage.control.site.shares import SiteShares
from presage.control.sweeps import Sweeps, members
from presage.control.watch import refuse_watched
from presage.core.ports import Knowledge
from presage.executors.node.limits import delegated_group, how_memory_is_held
from presage.executors.node.secrets import SecretFiles
from presage.executors.node.shares.methods import Guarantee
from presage.foresee.champions import Champions
from presage.model.errors import Conflict, Denied, NotFound, UserError
from presage.model.job import Reason
from presage.observe.health.trouble import TroubleRules
from presage.store import open_store
from presage.store.records import ArrayRow, JobChange, JobRow, User
from presage.store.sql import SqlStore

if TYPE_CHECKING:
    from presage.control.advisors.sizing import Sizing
    from presage.control.people.oidc import SignIns

__all__ = ["Service"]


class Service:
    """A server's parts. Everything here may be called from any thread."""

    def __init__(self, settings: Settings) -> None:
        run_as = settings.access.run_as
        self.unix_users = UnixUsers(run_as, settings.layout) if run_as else None
        settings.prepare()
        if self.unix_users is not None:
            self.unix_users.check_machine()
        self.settings = settings
        self.layout = layout = settings.layout
        self.store = store = open_store(settings.database)
        refuse_watched(store.knowledge)
        take_over_files(layout, store.knowledge)
        self.sign_ins, self.accounts = _doors(settings, store)
        self.recent, self.news = Recent(), News()
        self.results = JobResults(layout)
        self.tracker = Tracker(store, layout, settings.track_mlflow, settings.track_tensorboard)
        self.retention = Retention(layout, store, settings.retention, self.recent.forget)
        self.mistakes = PolicyMistakes()
        self.deciders = deciders = _deciders(settings, self.mistakes)
        self.live = live = Live(
            store,
            lambda: make_executor(self),
            deciders,
            seat=Seat(layout.lock),
            url=settings.url,
            lease_s=settings.lease_s,
            answer=self.news.answer,
            committed=self._written,
            witness=self._heard,
            alert_webhooks=settings.alert_webhooks,
        )
        self.accountant = Accountant(store, lambda: live.lease)
        self.knowledge = knowledge = store.knowledge.under(lambda: live.lease)
        self.starts = StartTimes(
            store, lambda: deciders.now, knowledge, ask=live.read, crowd=live.waiting
        )
        champions = Champions(knowledge)
        self.estimator = NeedsEstimator(
            champions,
            lambda: settings.nodes,
            layout.folder,
            self.starts.usual_runtime,
            settings.network,
        )
        self.learner = Learner(StoredEnds(store), champions, self.estimator)
        self.sizing: Sizing | None = None
        self.history = ClusterHistory(knowledge)
        recorder = self.recorder = HistoryRecorder(store, knowledge, self.history)
        pruning = Pruning(store.arrays.get, partial(members, store), knowledge)
        self.attendance = Attendance()
        self.health = HealthAdvisor(
            knowledge,
            settings.queues,
            rules=TroubleRules(settings.health_pace),
            every_s=settings.health_every_s,
        )
        self.failing = Failing(StoredEnds(store), knowledge, StoredTelemetry(layout))
        self.judging = Judging(store, lambda: deciders.now)
        advisors: list[Advisor] = [
            self.starts,
            self.learner,
            recorder,
            pruning,
            self.accountant,
            Unattended(self.attendance, _idle_stops(settings)),
            self.health,
            self.failing,
            self.judging,
            RatioAdvisor(),
        ]
        if settings.kubernetes is not None and settings.kubernetes.adopt:
            from presage.control.advisors.notes import WaitNotes
            from presage.executors.kubernetes.gangs import FOREIGN

            def explain(job: str) -> Reason | None:
                reason: Reason | None = live.ask(lambda engine: engine.explain(job))
                return reason

            advisors.append(WaitNotes(FOREIGN, explain, self.starts.eta, live.note))
        if settings.rightsize:
            self.sizing = _sizing(store, knowledge, Guarantee.LIVE in settings.shares.gives)
            advisors.append(self.sizing)
        self.advisors = Runner(live, advisors, StoredTelemetry(layout))
        self.secret_files = SecretFiles(layout)
        rules = SubmissionRules(
            settings.access,
            self.secret_files,
            self.unix_users.check if self.unix_users else lambda owner: None,
        )
        self.shares = SiteShares(settings)
        self.requests = Requests(
            live,
            store,
            self.estimator,
            layout,
            settings.queues,
            rules.check,
            may_see,
            self.shares,
        )
        self.sweeps = Sweeps(self.requests, store)
        elsewhere = settings.ray or settings.kubernetes or settings.slurm
        self.memory_limits = "" if elsewhere else how_memory_is_held(delegated_group())
        """What holds workers to their memory on this machine."""
        self.risks = Risks(layout, store.jobs, settings.ray_shared)
        self.what_if = asyncio.Lock()
        """One replay of the journal at a time."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to decide, and to advise; answers are given on this loop."""
        self.news.loop = loop
        self.live.start()
        self.tracker.start()
        self.advisors.start()

    def close(self) -> None:
        """Stop deciding and let go of the database; jobs go on."""
        self.starts.close()
        self.judging.close()
        self.advisors.stop()
        self.live.stop()
        self.tracker.close()
        self.store.close()

    def _heard(self, *turn: Any) -> None:
        """A turn is in the journal; called by the loop."""
        self.accountant.heard(*turn)
        self.health.hearing.heard(*turn)

    def _written(self, lease: int, rows: Sequence[JobRow], changes: Sequence[JobChange]) -> None:
        """Something is on disk: remember it, and wake requests that wait; called by the loop."""
        changed = [change.job for change in changes]
        self.tracker.note(rows, changes)
        self.recent.wrote(lease, rows, self.store.submitted, changed)
        self.news.committed()

    def elsewhere(self) -> str | None:
        """The address of another server that decides, if it leads there from other machines."""
        leader = self.store.lease.leader()
        if leader is None or leader.holder == self.live.seat.name or not leader.url:
            return None
        local = is_loopback(urlsplit(leader.url).hostname or "")
        if leader.url == self.settings.url or (local and not is_here(leader.holder)):
            return None
        return leader.url

    # -- jobs that a user asks about --------------------------------------------------------------

    async def ask(self, question: Any) -> Any:
        """Read something from the state."""
        return await asyncio.to_thread(self.live.ask, question)

    def seen(self, job_id: str, user: User) -> JobRow:
        """A job that a user may know of, by id, beginning of an id or name."""
        row = self.store.jobs.get(job_id)
        if row is None:
            row = self.store.jobs.get(resolve(self.store.jobs, job_id, partial(may_see, user)))
        if row is None or not may_see(user, row):
            raise unknown_job(self.store.jobs, job_id, partial(may_see, user))
        return row

    async def look(self, job_id: str, user: User) -> RecentJob:
        """A job that a user may know of, without its manifest, and every status it had."""

        visible = partial(may_see, user)
        known = await self._look(job_id)
        if known is None:
            full_id = await asyncio.to_thread(resolve, self.store.jobs, job_id, visible)
            known = await self._look(full_id)
        if known is None or not may_see(user, known.row):
            raise await asyncio.to_thread(unknown_job, self.store.jobs, job_id, visible)
        return known

    async def _look(self, job_id: str) -> RecentJob | None:
        def read() -> RecentJob | None:
            row = self.store.jobs.get(job_id)
            if row is None:
                return None
            return RecentJob(replace(row, manifest=None), self.store.jobs.transitions(job_id))

        lease = self.live.lease
        known = self.recent.job(lease, job_id)
        if known is None:
            known = await asyncio.to_thread(self.recent.read, lease, job_id, read)
        return known

    def changeable(self, job_id: str, user: User) -> JobRow:
        """A job that a user may change and that is not over."""
        row = self.seen(job_id, user)
        if not may_change(user, row):
            raise Denied(
                f"job {row.id} is {row.owner}'s: to change it needs the role operator; "
                f"{user.name} has the role {user.role} and may look at it only"
            )
        if row.status in ENDED:
            raise Conflict(f"job {row.id} is over: {row.status}")
        return row

    def array(self, array_id: str, user: User, *, change: bool = False) -> ArrayRow:
        """An array that a user may know of, or may change; by its id, its beginning or name."""
        row = self.store.arrays.get(array_id)
        if row is None:
            with suppress(UserError):
                other = found(array_id, self.store, partial(may_see, user))
                row = other if isinstance(other, ArrayRow) else None
        if row is None or not may_see(user, row):
            raise NotFound(f"there is no array {array_id[:80]}")
        if change and not may_change(user, row):
            raise Denied(f"array {row.id} is {row.owner}'s; {user.name} may look at it only")
        return row

    # -- files ----------------------------------------------------------------------------------

    def secrets(self, row: JobRow) -> list[bytes]:
        """What the secrets of a job hold, longest first: it must not be shown to anybody."""
        names = set(((row.manifest or {}).get("secrets") or {}).values())
        contents = []
        for name in names:
            with suppress(OSError):
                if path := self.secret_files.find(name, row.owner, row.team):
                    contents.append(path.read_bytes().rstrip(b"\n"))
        return sorted(filter(None, contents), key=len, reverse=True)


def _doors(settings: Settings, store: SqlStore) -> tuple[SignIns | None, Accounts]:
    """How people come in: with an identity provider, and with tokens."""
    sign_ins: SignIns | None = None
    if settings.oidc.issuer:
        from presage.control.people.oidc import SignIns

        sign_ins = SignIns(settings.oidc)
    accounts = Accounts(store.users, closed=sign_ins is not None)
    if settings.first_token and accounts.open():
        accounts.add("admin", "admin", "", settings.first_token, by="PRESAGE_TOKEN")
    return sign_ins, accounts


def _deciders(settings: Settings, mistakes: PolicyMistakes) -> Deciders:
    return Deciders(
        settings.policy_name,
        settings.policy.model_copy(update={"queues": dict(settings.queues)}),
        settings.own,
        more=settings.pipelines,
        nodes=settings.nodes,
        raised=mistakes.note,
    )


def _idle_stops(settings: Settings) -> dict[str, float]:
    """After how many seconds a queue stops what nobody uses."""
    return {n: q.idle_stop for n, q in settings.queues.items() if q.idle_stop is not None}


def _sizing(store: SqlStore, knowledge: Knowledge, shares: bool) -> Sizing:
    # Here, since a start is quicker without the models of phases.
    from presage.control.advisors.sizing import Sizing
    from presage.control.phases import StoredPhases, sized_workload

    sized = partial(sized_workload, store)
    return Sizing(StoredPhases(knowledge), sized, record=knowledge, shares=shares)
