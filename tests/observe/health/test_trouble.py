"""Detectors: each kind of trouble is seen, with its subject, and what is well is left alone."""

from __future__ import annotations

from collections.abc import Callable
from math import isclose
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.observe.health.trouble import (
    LiveRun,
    Trouble,
    TroubleKind,
    TroubleRules,
    TroubleWatch,
    WorkerPlace,
)
from presage.observe.health.trouble.formulas import (
    binomial_tail,
    fisher_tail,
    pause_tail,
    rates_differ,
    student_cdf,
    who_is_slow,
)
from presage.observe.health.trouble.nodes import RunEnd
from presage.observe.health.trouble.windows import WorkerWindows
from presage.telemetry.rows import Row

BEGAN = 1_000_000.0
Change = Callable[[Row, float], Row]


class Lived:
    """A run that is sampled every second (`every_s`) and makes a step every two samples."""

    def __init__(self, workers: int = 1, every_s: float = 1.0, **place: Any) -> None:
        self.watch = TroubleWatch(TroubleRules(pace=0.1))
        self.now, self.step, self.every_s = BEGAN, 0, every_s
        self.random = Random(1)
        self.names = [f"worker-{k}" for k in range(workers)]
        places = {
            name: WorkerPlace(**{"node": f"n{k}", "index": k, "cores": 1.0, **place})
            for k, name in enumerate(self.names)
        }
        self.watch.begin(LiveRun("j", 1, BEGAN, places))
        self.cpu = dict.fromkeys(self.names, 0.0)

    def live(self, samples: int, change: Change | None = None, *, steps: bool = True) -> Lived:
        """So many samples; `change` makes of each row what it is in trouble."""
        for number in range(samples):
            self.now += self.every_s
            for name in self.names:
                cores = self.random.uniform(0.3, 0.9)
                self.cpu[name] += cores * self.every_s
                mib = 500 + self.random.uniform(-5, 5)
                row = Row(self.now, name, self.cpu[name], cores, mib, 1, 4, 0, 0, stopped=0)
                row = change(row, self.now) if change is not None else row
                self.watch.rows("j", [row], self.now)
            if steps and number % 2 == 0:
                self.step += 1
                loss = 2.0 + self.random.gauss(0, 0.05)
                self.watch.report("j", self.now, 0.0, {"step": self.step, "loss": loss})
        return self

    def found(self) -> dict[TroubleKind, Trouble]:
        return {one.kind: one for one in self.watch.look(self.now)}

    def only(self, kind: TroubleKind) -> Trouble:
        """The only trouble there is."""
        found = self.found()
        assert found.keys() == {kind}
        assert found[kind].evidence
        assert found[kind].action
        return found[kind]


def idle(row: Row, at: float) -> Row:
    return row._replace(cpu_cores=0.0)


# -- what is well ---------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [0, 1, 3, 10, 64, 65, 400])
def test_a_run_that_is_well_is_left_alone(samples: int) -> None:
    assert Lived(2, memory_mib=600.0).live(samples).found() == {}


def test_an_evaluation_is_no_trouble() -> None:
    run = Lived().live(100)
    assert run.live(20, steps=False).found() == {}  # busy, and a fifth of what it ran
    assert run.live(60).live(25, steps=False).found() == {}  # as long as it was before


def test_memory_that_levels_off_is_no_leak() -> None:
    run = Lived(memory_mib=1000.0)

    def fills(row: Row, at: float) -> Row:
        return row._replace(rss_mib=900 - 800 * 0.97 ** (at - BEGAN))

    for _ in range(20):
        assert run.live(10, fills).found() == {}


def test_a_run_that_never_reported_is_not_called_stuck() -> None:
    assert Lived().live(300, idle, steps=False).found() == {}


# -- one kind after the other ---------------------------------------------------------------------


def test_stuck() -> None:
    run = Lived().live(60)
    assert run.live(12, idle, steps=False).found() == {}  # not so soon
    trouble = run.live(48, idle, steps=False).only(TroubleKind.STUCK)
    assert str(trouble.subject) == "job j"
    assert "no progress for" in trouble.text
    run.live(10)  # it goes on
    assert run.found() == {}


def test_stopped_by_a_signal_names_the_worker() -> None:
    run = Lived(3).live(20)
    run.live(15, lambda row, at: row._replace(stopped=2 if row.worker == "worker-1" else 0))
    trouble = run.only(TroubleKind.STUCK)
    assert str(trouble.subject) == "worker j/worker-1"


def test_the_one_that_all_wait_for() -> None:
    run = Lived(3).live(60)
    run.live(60, lambda row, at: idle(row, at) if row.worker == "worker-2" else row, steps=False)
    assert str(run.only(TroubleKind.STUCK).subject) == "worker j/worker-2"


def test_spinning() -> None:
    run = Lived().live(60)
    trouble = run.live(240, steps=False).only(TroubleKind.SPINNING)
    assert "busy" in trouble.text


def test_a_leak_and_when_it_ends() -> None:
    run = Lived(memory_mib=2000.0)

    def leaks(row: Row, at: float) -> Row:
        return row._replace(rss_mib=500 + 4 * (at - BEGAN) + run.random.uniform(-3, 3))

    trouble = run.live(120, leaks).only(TroubleKind.LEAK)
    assert str(trouble.subject) == "worker j/worker-0"
    assert trouble.due_at is not None
    assert isclose(trouble.due_at - BEGAN, 1500 / 4, rel_tol=0.1)  # at 2000 MiB


def test_memory_of_a_gpu_and_no_limit_no_leak() -> None:
    def grows(row: Row, at: float) -> Row:
        mib = 1000 + 20 * (at - BEGAN)
        return row._replace(rss_mib=mib, gpu_memory_mib=mib, gpu_util_pct=70.0)

    run = Lived(gpu_memory_mib=10_000.0, devices=(0,)).live(120, grows)
    run.only(TroubleKind.GPU_MEMORY)


def test_a_straggler_by_its_steps() -> None:
    run = Lived(4)
    at_step: dict[str, float] = dict.fromkeys(run.names, 0.0)

    def steps(row: Row, at: float) -> Row:
        at_step[row.worker] += 0.5 if row.worker == "worker-2" else 1.0
        return row._replace(step=at_step[row.worker])

    trouble = run.live(60, steps).only(TroubleKind.STRAGGLER)
    assert str(trouble.subject) == "worker j/worker-2"
    assert "50% of the steps" in trouble.text


def test_nan_and_a_loss_that_rises() -> None:
    run = Lived().live(80)
    run.watch.report("j", run.now, 0.0, {"step": 999}, ("loss",))
    assert run.only(TroubleKind.NOT_FINITE).probability > 0.99
    run.watch.report("j", run.now, 0.0, {"step": 1000, "loss": 2.0})
    assert run.found() == {}
    for k in range(8):
        run.watch.report("j", run.now + k, 0.0, {"step": 1001 + k, "loss": 30.0 * 2**k})
    assert run.only(TroubleKind.DIVERGED).evidence[0].series == "loss"


def test_a_disk_that_fills() -> None:
    run = Lived()

    def fills(row: Row, at: float) -> Row:
        return row._replace(disk_total_mib=1000.0, disk_free_mib=900 - 6 * (at - BEGAN))

    trouble = run.live(80, fills).only(TroubleKind.DISK)
    assert str(trouble.subject) == "node n0"
    assert "will be full at" in trouble.text
    full = Lived().live(5, lambda row, at: row._replace(disk_total_mib=1e3, disk_free_mib=2.0))
    assert "is full" in full.only(TroubleKind.DISK).text


def test_packets_that_get_lost() -> None:
    run = Lived(2)

    def loses(row: Row, at: float) -> Row:
        sent = 100 * (at - BEGAN)
        share = 0.2 if row.worker == "worker-1" else 0.001
        return row._replace(tcp_sent=sent, tcp_resent=round(share * sent))

    assert str(run.live(30, loses).only(TroubleKind.NETWORK).subject) == "worker j/worker-1"


@pytest.mark.parametrize(("off_s", "word"), [(20.0, "ahead"), (-90.0, "behind")])
def test_a_clock_that_is_wrong(off_s: float, word: str) -> None:
    run = Lived().live(20, lambda row, at: row._replace(at=row.at + off_s))
    assert word in run.only(TroubleKind.CLOCK).text


def test_an_error_that_the_driver_reported() -> None:
    run = Lived(devices=(1,)).live(20)
    run.live(3, lambda row, at: row._replace(gpu_xid=79.0))
    trouble = run.only(TroubleKind.GPU_ERROR)
    assert str(trouble.subject) == "gpu n0/1"
    assert trouble.avoidable
    run = Lived(devices=(1,)).live(20).live(3, lambda row, at: row._replace(gpu_xid=13.0))
    assert not run.only(TroubleKind.GPU_ERROR).avoidable  # usually a fault of the program
    counts = iter(range(100))
    run = Lived(devices=(1,)).live(9, lambda row, at: row._replace(gpu_ecc_errors=next(counts)))
    assert "memory errors" in run.only(TroubleKind.GPU_ERROR).text


def test_gpus_that_are_held_and_idle() -> None:
    run = Lived(devices=(0,)).live(30, lambda row, at: row._replace(gpu_util_pct=0.0))
    assert run.found() == {}  # it may be starting
    run.live(60, lambda row, at: row._replace(gpu_util_pct=0.0)).only(TroubleKind.GPU_IDLE)
    run.live(1, lambda row, at: row._replace(gpu_util_pct=50.0))
    assert run.found() == {}


def test_others_on_its_cores() -> None:
    run, waited = Lived(), [0.0]

    def waits(row: Row, at: float) -> Row:
        waited[0] += 1.2
        return row._replace(wait_s=waited[0])

    assert run.live(40, waits).only(TroubleKind.CROWDED).avoidable


def test_its_own_threads_do_not_crowd_it() -> None:
    run = Lived()

    def own(row: Row, at: float) -> Row:  # all of its core, and threads that wait for it
        return row._replace(cpu_s=at - BEGAN, wait_s=2 * (at - BEGAN))

    assert run.live(40, own).found() == {}


# -- nodes ----------------------------------------------------------------------------------------


def ends(*runs: tuple[str, str, bool]) -> list[Trouble]:
    watch = TroubleWatch()
    for number, (job, node, failed) in enumerate(runs):
        watch.ends.add(RunEnd(BEGAN + number, job, 1, "w", (node,), failed))
    return watch.look(BEGAN + 100)


def test_a_bad_node() -> None:
    well = [(f"ok-{k}", f"n{k % 4}", False) for k in range(40)]
    bad = [(f"bad-{k}", "n9", True) for k in range(5)]
    (trouble,) = ends(*well, *bad)
    assert (trouble.kind, str(trouble.subject)) == (TroubleKind.BAD_NODE, "node n9")
    assert "5 of 5 jobs failed on it, 0 of 40 elsewhere" in trouble.text
    assert ends(*well, *bad[:2]) == []  # too few to tell
    assert ends(*bad) == []  # nothing to compare with


def test_a_job_that_fails_everywhere_says_nothing_about_nodes() -> None:
    well = [(f"ok-{k}", f"n{k % 4}", False) for k in range(40)]
    own_fault = [(f"bad-{k}", node, True) for k in range(5) for node in ("n9", "n1")]
    assert ends(*well, *own_fault) == []


def test_a_worker_that_somebody_killed() -> None:
    watch = TroubleWatch()
    end = RunEnd(BEGAN, "j", 1, "w", ("n0", "n1"), True, "ps-0 was killed by SIGKILL", "n1")
    watch.ends.add(end)
    (trouble,) = watch.look(BEGAN + 5)
    assert (trouble.kind, str(trouble.subject)) == (TroubleKind.KILLED, "worker j/ps-0")
    assert watch.look(BEGAN + 1000) == []


# -- node or shard --------------------------------------------------------------------------------


def test_who_is_slow_shows_when_it_moves() -> None:
    def attempt(order: str, slow: int) -> tuple[list[tuple[int, str]], int]:
        return [(index, node) for index, node in enumerate(order)], slow

    once = [attempt("abcd", 1)]
    assert isclose(who_is_slow(once)[0], 0.5)
    node = [attempt("abcd", 1), attempt("bacd", 0), attempt("acdb", 3)]
    probability, which = who_is_slow(node)
    assert probability > 0.95
    assert which == "b"
    shard = [attempt("abcd", 1), attempt("bacd", 1), attempt("acdb", 1)]
    assert who_is_slow(shard)[0] < 0.05


# -- formulas -------------------------------------------------------------------------------------


def test_against_tables() -> None:
    assert isclose(student_cdf(2.776, 4), 0.975, abs_tol=1e-4)
    assert isclose(student_cdf(-2.447, 6), 0.025, abs_tol=1e-4)
    assert isclose(fisher_tail(3, 3, 0, 3), 1 / 20, abs_tol=1e-12)
    assert rates_differ(5, 5, 0, 40) > 1000
    assert rates_differ(1, 10, 4, 40) < 1


@given(st.integers(0, 30), st.integers(0, 30), st.floats(0.01, 0.6))
def test_the_tail_of_a_binomial_is_a_sum(successes: int, more: int, share: float) -> None:
    from math import comb

    trials = successes + more
    said = binomial_tail(successes, trials, share)
    exact = sum(
        comb(trials, k) * share**k * (1 - share) ** (trials - k)
        for k in range(successes, trials + 1)
    )
    assert isclose(said, exact, rel_tol=1e-6) or (said == 1.0 and successes <= trials * share)


@given(st.integers(0, 1000), st.floats(0.1, 1e4), st.floats(0.1, 1e5))
def test_a_longer_pause_is_never_likelier(count: int, longest: float, pause: float) -> None:
    assert pause_tail(count, longest, 2 * pause) <= pause_tail(count, longest, pause) <= 1


# -- windows --------------------------------------------------------------------------------------


@given(st.integers(1, 400), st.integers(1, 64))
def test_windows_keep_the_latest_and_the_whole_run(rows: int, last: int) -> None:
    windows = WorkerWindows()
    for k in range(rows):
        windows.add(("j", 1, "w"), Row(float(k), "w", rss_mib=float(k)))
        windows.add(("other", 1, "w"), Row(float(-k), "w"))
    slot = windows.slots["j", 1, "w"]
    (at,) = windows.recent("at", last=last)
    held = [value for value in at[slot].tolist() if value == value]
    assert held == [float(k) for k in range(max(0, rows - min(last, 64)), rows)]
    kept, (whole,) = windows.whole("at")
    seen = whole[slot, : kept[slot]].tolist()
    assert seen[0] == 0.0
    assert seen == sorted(set(seen))
    assert seen[-1] >= rows - 1 - max(1, rows // 32)
    windows.drop("j", 1, "w")
    windows.add(("next", 1, "w"), Row(5.0, "w"))
    (at,) = windows.recent("at", last=64)
    assert [v for v in at[windows.slots["next", 1, "w"]].tolist() if v == v] == [5.0]
