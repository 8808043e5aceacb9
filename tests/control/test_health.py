"""Alerts: they appear, are kept, end; and what is done about trouble by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from presage.control.advisors.health import HealthAdvisor
from presage.control.advisors.starts import Declared
from presage.control.health.alerts import Alert, AlertBook
from presage.control.health.hearing import read_ends
from presage.control.health.remedies import Remedies, RemedyTarget
from presage.control.measured import StoredTelemetry
from presage.core.engine import Engine
from presage.layout import Layout
from presage.model import event as ev
from presage.model.cluster import Device, Node, Resources
from presage.model.job import JobSpec, JobState, Reason, ReasonCode, Role
from presage.observe.health.trouble import Subject, SubjectKind, Trouble, TroubleKind, TroubleRules
from presage.policy import registry
from presage.policy.config import QueueConfig
from presage.store.memory import MemoryKnowledge

ASK = Resources(cpu_milli=1000, memory_mib=2000, gpu_milli=1000)
QUIET = QueueConfig()
ACTING = QueueConfig(remedies=("restart", "cordon", "memory", "checkpoint"))


def trouble(
    kind: TroubleKind = TroubleKind.STUCK, name: str = "j", probability: float = 0.99, **more: Any
) -> Trouble:
    subject = Subject(SubjectKind.JOB, name)
    about = {"job": name, "attempt": 1, **more}
    return Trouble(kind, subject, probability, "it stands still", "look", (), **about)


# -- the book -------------------------------------------------------------------------------------


def test_an_alert_is_raised_once_and_ends() -> None:
    book = AlertBook(MemoryKnowledge())
    assert book.look(1.0, [trouble()], ["j"]) == []  # one look may be an accident
    (raised,) = book.look(2.0, [trouble()], ["j"])
    assert isinstance(raised, ev.AlertRaised)
    assert (raised.kind, raised.subject, raised.job) == ("stuck", "job j", "j")
    assert [book.look(3.0 + k, [trouble()], ["j"]) for k in range(5)] == [[]] * 5
    assert [book.look(10.0 + k, [], ["j"]) for k in range(2)] == [[], []]
    (cleared,) = book.look(12.0, [], ["j"])
    assert isinstance(cleared, ev.AlertCleared)
    assert cleared.alert == raised.alert
    assert book.open() == []
    assert [one.cleared_at for one in book.over()] == [12.0]
    # What comes back soon is the alert it was; what comes much later is another one.
    book.look(20.0, [trouble()], ["j"])
    (again,) = book.look(21.0, [trouble()], ["j"])
    assert again.alert == raised.alert
    assert book.over() == []
    assert [change.alert.id for change in book.news(0)] == [raised.alert] * 3


def test_the_end_of_a_run_ends_its_alerts() -> None:
    book = AlertBook(MemoryKnowledge())
    (_,) = book.look(1.0, [trouble(TroubleKind.NOT_FINITE)], ["j"])  # needs no second look
    (cleared,) = book.look(2.0, [], [])
    assert cleared.text == "the run is over"


def test_a_flood_of_alerts_waits_for_its_turn() -> None:
    book = AlertBook(MemoryKnowledge())
    flood = [trouble(TroubleKind.NOT_FINITE, f"j{k}") for k in range(100)]
    names = [f"j{k}" for k in range(100)]
    assert len(book.look(1.0, flood, names)) == 30
    assert book.look(2.0, flood, names) == []
    assert book.held_back == 140
    assert len(book.look(62.0, flood, names)) == 30


def test_the_next_server_goes_on_with_the_book() -> None:
    knowledge = MemoryKnowledge()
    book = AlertBook(knowledge)
    book.look(1.0, [trouble(TroubleKind.NOT_FINITE), trouble(TroubleKind.KILLED)], ["j"])
    book.look(2.0, [trouble(TroubleKind.KILLED)], ["j"])
    book.note_done(book.open()[0], "started again")
    following = AlertBook(knowledge)
    assert following.open() == book.open()
    assert any(one.done == ("started again",) for one in following.open())
    assert following.look(3.0, [trouble(TroubleKind.KILLED)], ["j"]) == []  # it is no news
    for k in range(3):
        following.look(4.0 + k, [trouble(TroubleKind.KILLED)], ["j"])
    assert {one.finding.kind for one in AlertBook(knowledge).over()} == {TroubleKind.NOT_FINITE}


# -- the advisor, over an engine ------------------------------------------------------------------


class Loop:
    """The deciding loop as the advisor sees it."""

    def __init__(self, home: Path, queue: QueueConfig = QUIET, nodes: int = 3) -> None:
        self.engine = Engine(registry.build("fifo"), Declared(), check_every=1)
        self.home, self.now = home, 1_000_000.0
        self.knowledge = MemoryKnowledge()
        self.advisor = HealthAdvisor(
            self.knowledge, {"q": queue}, rules=TroubleRules(0.1), cpu_clock=lambda: 0.0
        )
        self.facts: list[ev.Fact] = []
        self.decisions: list[ev.Decision] = []
        devices = (Device(memory_mib=40_000),) * 2
        for k in range(nodes):
            self.handle(ev.NodeUp(Node(f"n{k}", devices, 8000, 65_536)))

    def handle(self, *facts: ev.Fact) -> list[ev.Decision]:
        decisions = self.engine.handle(self.now, facts)
        happened = [*facts, *decisions]
        self.advisor.hearing.heard(0, self.now, happened, len(happened), self.engine.state)
        self.decisions += decisions
        return decisions

    def start(self, name: str, **more: Any) -> None:
        spec = JobSpec(name, (Role("worker", ASK),), queue="q", **more)
        self.handle(ev.JobSubmitted(spec))
        self.handle(ev.JobStarted(name, 1))

    def live(self, samples: int, job: str, *, steps: bool, **row: float) -> None:
        """The run writes rows, and the advisor looks after each."""
        attempt = self.engine.state.jobs[job].attempt
        file = Layout(self.home).telemetry(job, attempt)
        file.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(samples):
            self.now += 2.0
            body = {"at": self.now, "worker": "worker-0", "cpu_cores": 0.8, "rss_mib": 500, **row}
            with file.open("a") as out:
                out.write(json.dumps(body) + "\n")
            if steps:
                done = (self.now - 1_000_000) / 1e6
                self.handle(ev.Progress(job, attempt, done))
            self.look()

    def look(self) -> None:
        measured = StoredTelemetry(Layout(self.home))
        for fact in self.advisor.look(
            self.now, lambda question: question(self.engine.state), measured
        ):
            self.facts.append(fact)
            self.handle(fact)

    def kinds(self) -> list[type[ev.Fact]]:
        return [type(fact) for fact in self.facts]


def test_a_run_that_stands_still_is_told_and_told_to_be_over(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.start("j")
    loop.live(30, "j", steps=True)
    assert loop.facts == []
    loop.live(40, "j", steps=False, cpu_cores=0.0)
    (raised,) = loop.facts
    assert isinstance(raised, ev.AlertRaised)
    assert raised.kind == "stuck"
    (alert,) = loop.advisor.book.of_job("j")
    assert "no progress" in alert.finding.text
    loop.live(5, "j", steps=True)
    assert loop.kinds() == [ev.AlertRaised, ev.AlertCleared]
    assert not any(isinstance(one, ev.Stop) for one in loop.decisions)  # nothing is switched on


def test_a_remedy_is_a_decision_and_happens_once(tmp_path: Path) -> None:
    loop = Loop(tmp_path, ACTING)
    loop.start("j")
    loop.live(30, "j", steps=True)
    loop.live(60, "j", steps=False, cpu_cores=0.0)
    assert loop.kinds() == [ev.AlertRaised, ev.RemedyAdvised, ev.AlertCleared]
    (stop,) = [one for one in loop.decisions if isinstance(one, ev.Stop)]
    assert stop.reason.code is ReasonCode.TROUBLE
    assert "no progress" in stop.reason.text
    loop.handle(ev.JobExited("j", 1, ev.Outcome.STOPPED))
    assert loop.engine.state.jobs["j"].attempt == 2  # it goes on at once
    loop.handle(ev.JobStarted("j", 2))
    loop.live(30, "j", steps=True)
    loop.live(60, "j", steps=False, cpu_cores=0.0)  # again, and too soon to act once more
    assert sum(isinstance(one, ev.Stop) for one in loop.decisions) == 1


def test_an_error_of_a_gpu_moves_the_job_and_drains_the_node(tmp_path: Path) -> None:
    loop = Loop(tmp_path, ACTING)
    loop.start("j")
    (first,) = {worker.node for worker in loop.engine.state.jobs["j"].allocation}
    loop.live(3, "j", steps=True, gpu_xid=79.0, gpu_util_pct=50.0)
    assert ev.RemedyAdvised in loop.kinds()
    assert ev.NodeDraining(first) in loop.facts
    loop.handle(ev.JobExited("j", 1, ev.Outcome.STOPPED))
    job = loop.engine.state.jobs["j"]
    assert first not in {worker.node for worker in job.allocation}
    assert job.spec.roles[0].where.avoid == (first,)


def test_the_last_node_is_never_drained(tmp_path: Path) -> None:
    loop = Loop(tmp_path, ACTING, nodes=1)
    loop.start("j")
    loop.live(3, "j", steps=True, gpu_xid=79.0, gpu_util_pct=50.0)
    assert loop.kinds() == [ev.AlertRaised]


def test_a_leak_gets_more_memory_when_it_runs_out(tmp_path: Path) -> None:
    loop = Loop(tmp_path, QueueConfig(remedies=("memory",)))
    loop.start("j")
    for k in range(60):
        loop.live(1, "j", steps=True, rss_mib=400 + 10 * k, gpu_util_pct=50.0)
    assert loop.kinds() == [ev.AlertRaised, ev.RemedyAdvised]
    loop.handle(ev.JobExited("j", 1, ev.Outcome.OUT_OF_MEMORY))
    job = loop.engine.state.jobs["j"]
    assert job.attempt == 2
    assert job.spec.roles[0].resources.memory_mib == 3000


def test_ends_are_kept_for_the_next_server(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.start("j")
    text = Reason(ReasonCode.ERROR, "worker-0 was killed by SIGKILL")
    loop.handle(ev.JobExited("j", 1, ev.Outcome.LOST, text))
    loop.look()
    (end,) = read_ends(loop.knowledge)
    assert (end.job, end.failed, end.worker_node) == ("j", True, end.nodes[0])
    (raised,) = loop.facts
    assert isinstance(raised, ev.AlertRaised)
    assert raised.kind == "killed"


# -- what may be done -----------------------------------------------------------------------------


def advised(queue: QueueConfig, finding: Trouble, **more: Any) -> ev.RemedyAdvised | None:
    about: dict[str, Any] = {"queue": "q", "attempt": 1, "limited": False, **more}
    target = RemedyTarget(**about)
    alert = Alert("a", finding, 0.0, 0.0)
    chosen = Remedies({"q": queue}).for_job(100.0, alert, target)
    return chosen[0] if chosen is not None else None


def test_nothing_is_done_that_is_not_switched_on_or_sure_enough() -> None:
    here: dict[str, Any] = {"has_room_elsewhere": True}
    assert advised(ACTING, trouble(), **here) is not None
    assert advised(QueueConfig(), trouble(), **here) is None
    assert advised(QueueConfig(remedies=("memory",)), trouble(), **here) is None
    assert advised(ACTING, trouble(probability=0.949), **here) is None
    strict = ACTING.model_copy(update={"remedy_precision": 0.999})
    assert advised(strict, trouble(), **here) is None
    assert advised(ACTING, trouble(attempt=2), **here) is None  # of another run
    assert advised(ACTING, trouble(TroubleKind.NOT_FINITE), **here) is None  # no remedy is safe


def test_a_straggler_moves_only_where_there_is_room() -> None:
    slow = trouble(TroubleKind.STRAGGLER, node="n1", avoidable=True)
    moved = advised(ACTING, slow, has_room_elsewhere=True)
    assert moved is not None
    assert moved.avoid == ("n1",)
    assert advised(ACTING, slow, has_room_elsewhere=False) is None
    shard = trouble(TroubleKind.STRAGGLER, node="n1", avoidable=False)
    assert advised(ACTING, shard, has_room_elsewhere=True) is None


def test_advice_about_an_older_run_changes_nothing() -> None:
    engine = Engine(registry.build("fifo"), Declared())
    engine.handle(1.0, [ev.NodeUp(Node("n"))])
    engine.handle(2.0, [ev.JobSubmitted(JobSpec("j", (Role(),)))])
    engine.handle(3.0, [ev.JobStarted("j", 1)])
    why = Reason(ReasonCode.TROUBLE, "")
    advice = ev.RemedyAdvised("j", 7, ev.Remedy.RESTART, why, ("n",))
    assert engine.handle(4.0, [advice]) == []
    assert engine.state.jobs["j"].state is JobState.RUNNING
    assert engine.state.jobs["j"].spec.roles[0].where.avoid == ()
