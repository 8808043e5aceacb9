"""What every executor must keep, as tests to inherit: `PortSuite` first, then `ExecutorSuite`.

    class TestMyExecutor(PortSuite):
        @pytest.fixture
        def kit(self) -> Iterator[ExecutorKit]:
            ...

A kit is what the suite cannot know: how a job is made known to this executor, how one of its
workers is killed, and where its logs are. Jobs are real programs; they find what they need in the
environment that Presage promises (`PRESAGE_RANK` and so on).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from presage.core.ports import CanResize
from presage.model import event as ev
from presage.model.event import Outcome
from presage.model.job import Reason, ReasonCode
from presage.testing.runs import Counting, ExecutorKit, RoleWork, Watcher, dedented

__all__ = ["Counting", "ExecutorKit", "ExecutorSuite", "PortSuite", "RoleWork", "Watcher"]

_LONG = "import time\nprint('up')\ntime.sleep(600)"
_IN_STEP = """
    import time
    from presage import job
    given, count = job.allocation(), 0
    def save(directory): (directory / "count").write_text(str(count))
    def load(directory):
        global count
        count = int((directory / "count").read_text())
    job.checkpoint(save, load)
    job.on_resize(lambda now, then: print("told:", now, "to", then, "after", count, flush=True))
    job.restore()
    print(given.rank, "of", given.workers, "goes on after", count, flush=True)
    def done(rank): return given.checkpoint_dir / f".{given.workers}-{count}-{rank}"
    while True:
        count += 1
        done(given.rank).touch()
        while not all(done(rank).exists() for rank in range(given.workers)):
            if job.stopping(): raise SystemExit(job.STOPPED)
            time.sleep(0.002)
        print(given.rank, "of", given.workers, "takes step", count, flush=True)
        job.step(step=count)
"""
"""Ranks that train in step: nobody gets past one before all have done it."""
_ASKED = Reason(ReasonCode.REQUESTED, "halted by request")
_TRIES = 10
"""How often a test tries to do something before something else happens."""


class PortSuite:
    """What the deciding loop relies on, with real jobs of one worker and real signals."""

    @pytest.fixture
    def kit(self) -> Iterator[ExecutorKit]:
        """The kit of the executor under test."""
        raise NotImplementedError

    @pytest.fixture
    def watch(self, kit: ExecutorKit) -> Watcher:
        """An executor with nothing to do."""
        return Watcher(kit)

    def test_a_run_starts_and_ends_well(self, watch: Watcher) -> None:
        before = time.time()
        watch.run("good", RoleWork("print('done')"))
        exited = watch.end("good")
        assert (exited.outcome, exited.exit_code) == (Outcome.SUCCEEDED, 0)
        kinds = [type(fact) for fact in watch.facts if not isinstance(fact, ev.StageChanged)]
        assert kinds == [ev.JobStarted, ev.JobExited]
        (started,) = watch.of("good", ev.JobStarted)
        assert started.at is None or before <= started.at <= time.time()
        assert watch.kit.log("good", 1, "worker-0") == "done\n"
        watch.assert_nothing_left("good")

    def test_an_error_says_its_exit_code_and_last_words(self, watch: Watcher) -> None:
        watch.run("bad", RoleWork("print('so far')\nraise LookupError('no such class')"))
        exited = watch.end("bad")
        assert (exited.outcome, exited.exit_code) == (Outcome.FAILED, 1)
        assert exited.reason is not None
        assert exited.reason.code is ReasonCode.ERROR
        assert "exit code 1" in exited.reason.text
        assert "LookupError: no such class" in exited.reason.text
        watch.assert_nothing_left("bad")

    def test_a_signal_is_named(self, watch: Watcher) -> None:
        watch.run("crash", RoleWork("import os\nos.kill(os.getpid(), 11)"))
        exited = watch.end("crash")
        assert (exited.outcome, exited.exit_code) == (Outcome.FAILED, 139)
        assert exited.reason is not None
        assert "SIGSEGV" in exited.reason.text

    def test_a_program_that_is_not_there_is_refused(self, watch: Watcher) -> None:
        watch.run("typo", RoleWork(program=("presage-no-such-program",)))
        watch.until(lambda: watch.of("typo", ev.LaunchFailed), "refused")
        (failed,) = watch.of("typo", ev.LaunchFailed)
        assert failed.reason.code is ReasonCode.LAUNCH_FAILED
        assert "presage-no-such-program" in failed.reason.text
        watch.assert_nothing_left("typo")

    def test_a_launch_sent_again_changes_nothing(self, watch: Watcher) -> None:
        workers = watch.run("once", RoleWork("print('ran')"))
        watch.executor.launch(ev.Launch("once", 1, workers))
        watch.end("once")
        watch.settle()
        watch.executor.launch(ev.Launch("once", 1, workers))
        watch.let_time_pass()
        assert watch.kit.log("once", 1, "worker-0") == "ran\n"
        watch.assert_nothing_left("once")

    def test_a_stop_leaves_time_for_a_checkpoint(self, watch: Watcher) -> None:
        script = """
            import os, pathlib, signal, sys, time
            place = pathlib.Path(os.environ["PRESAGE_CHECKPOINT_DIR"]) / "state"
            print("continues" if place.exists() else "begins")
            if place.exists(): sys.exit()
            def save(*_):
                time.sleep(0.2)
                place.write_text("half way")
                sys.exit(143)
            signal.signal(signal.SIGTERM, save)
            print("up")
            while True: time.sleep(0.01)
        """
        work = RoleWork(dedented(script))
        workers = watch.run("saver", work)
        watch.until_log("saver", "up")
        watch.stop("saver")
        watch.stop("saver")
        exited = watch.end("saver")
        assert exited.outcome is Outcome.STOPPED
        assert exited.reason == _ASKED
        watch.assert_nothing_left("saver")
        watch.executor.launch(ev.Launch("saver", 2, workers))
        assert watch.end("saver", 2).outcome is Outcome.SUCCEEDED
        assert watch.kit.log("saver", 2, "worker-0") == "continues\n"
        assert len(watch.of("saver", ev.JobExited)) == 1

    def test_a_job_that_will_not_stop_is_killed(self, watch: Watcher) -> None:
        script = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + _LONG
        watch.run("stubborn", RoleWork(script), grace_s=0.3)
        watch.until_log("stubborn", "up")
        watch.stop("stubborn")
        assert watch.end("stubborn").outcome is Outcome.STOPPED
        watch.assert_nothing_left("stubborn")

    def test_a_stop_right_after_the_launch_is_heard(self, watch: Watcher) -> None:
        watch.run("hasty", RoleWork(_LONG))
        watch.stop("hasty")
        assert watch.end("hasty").outcome is Outcome.STOPPED
        watch.assert_nothing_left("hasty")

    def test_a_stop_of_an_unknown_run_is_answered(self, watch: Watcher) -> None:
        workers = watch.kit.add_job("unknown", RoleWork("print('ran')"))
        watch.stop("unknown")
        assert watch.end("unknown").outcome is Outcome.STOPPED
        watch.executor.launch(ev.Launch("unknown", 1, workers))
        watch.let_time_pass()
        assert not watch.of("unknown", ev.JobStarted)
        watch.assert_nothing_left("unknown")

    def test_a_stop_of_an_older_run_leaves_the_present_one_alone(self, watch: Watcher) -> None:
        workers = watch.kit.add_job("again", RoleWork(_LONG))
        watch.executor.launch(ev.Launch("again", 2, workers))
        watch.until_started("again", 2)
        watch.stop("again", 1)
        assert watch.end("again", 1).outcome is Outcome.STOPPED
        assert not watch.of("again", ev.JobExited, 2)
        watch.stop("again", 2)
        assert watch.end("again", 2).outcome is Outcome.STOPPED


class ExecutorSuite(PortSuite):
    """What users rely on besides: gangs, limits, logs, runs that outlive the server, and nothing
    that is left behind."""

    log_cap = 100_000
    """Bytes that the log of a worker may have; the kit makes executors that keep to it."""

    # -- how runs end ---------------------------------------------------------------------------

    def test_out_of_memory_is_told_apart(self, watch: Watcher) -> None:
        hoard = "kept = []\nwhile True: kept.append(b'x' * (1 << 20))"
        watch.run("hoarder", RoleWork(hoard, memory_mib=96))
        exited = watch.end("hoarder")
        assert exited.outcome is Outcome.OUT_OF_MEMORY
        assert exited.reason is not None
        assert exited.reason.code is ReasonCode.OUT_OF_MEMORY
        assert "96 MiB" in exited.reason.text
        watch.assert_nothing_left("hoarder")

    def test_a_job_within_its_memory_is_left_alone(self, watch: Watcher) -> None:
        watch.run(
            "modest", RoleWork("import time\nx = b'x' * (8 << 20)\ntime.sleep(0.5)", (), 1, 96)
        )
        assert watch.end("modest").outcome is Outcome.SUCCEEDED

    def test_the_time_limit_ends_a_run(self, watch: Watcher) -> None:
        watch.run("slow", RoleWork(_LONG), time_limit_s=0.3)
        exited = watch.end("slow")
        assert exited.outcome is Outcome.FAILED
        assert exited.reason is not None
        assert exited.reason.code is ReasonCode.TIME_LIMIT
        watch.assert_nothing_left("slow")

    def test_a_killed_worker_ends_the_run_and_is_named(self, watch: Watcher) -> None:
        watch.run("gang", RoleWork(_LONG, workers=2))
        watch.until_started("gang")
        for worker in ("worker-0", "worker-1"):
            watch.until_log("gang", "up", worker=worker)
        watch.kit.kill_worker("gang", 1, 1)
        exited = watch.end("gang")
        assert exited.outcome is Outcome.LOST  # not the job's fault: it is started again
        assert exited.reason is not None
        assert "worker-1" in exited.reason.text
        assert "SIGKILL" in exited.reason.text
        watch.assert_nothing_left("gang")

    # -- starting -------------------------------------------------------------------------------

    def test_a_gang_starts_whole_or_not_at_all(self, watch: Watcher) -> None:
        script = "print('up')\n" + _LONG
        missing = RoleWork(program=("presage-no-such-program",))
        watch.run("half", RoleWork(script, workers=2), missing)
        watch.until(lambda: watch.of("half", ev.LaunchFailed), "refused")
        (failed,) = watch.of("half", ev.LaunchFailed)
        assert failed.reason.code is ReasonCode.LAUNCH_FAILED
        assert "presage-no-such-program" in failed.reason.text
        assert not watch.of("half", ev.JobStarted)
        watch.assert_nothing_left("half")

    def test_a_launch_sent_again_after_a_restart_changes_nothing(self, watch: Watcher) -> None:
        workers = watch.run("twice", RoleWork("print('ran')"))
        watch.restart()
        watch.executor.launch(ev.Launch("twice", 1, workers))
        watch.end("twice")
        watch.settle()
        watch.restart()
        watch.facts.clear()
        watch.executor.launch(ev.Launch("twice", 1, workers))
        watch.let_time_pass()
        assert not watch.of("twice", ev.JobStarted)
        assert watch.kit.log("twice", 1, "worker-0") == "ran\n"

    def test_a_gang_may_be_launched_in_parts(self, watch: Watcher) -> None:
        workers = watch.kit.add_job("parts", RoleWork("print('ran')", workers=2))
        watch.executor.launch(ev.Launch("parts", 1, workers[:1]))
        watch.settle()
        assert not watch.facts
        watch.executor.launch(ev.Launch("parts", 1, workers[1:]))
        assert watch.end("parts").outcome is Outcome.SUCCEEDED
        for worker in ("worker-0", "worker-1"):
            assert watch.kit.log("parts", 1, worker) == "ran\n"

    def test_a_worker_finds_its_place_in_the_environment(self, watch: Watcher) -> None:
        script = "import json, os, time\nprint(json.dumps(dict(os.environ)), flush=True)\n"
        script += "mark = os.environ['PRESAGE_CHECKPOINT_DIR'] + '/served'\n"
        # The one that serves is ended with the others: they wait until it has spoken.
        works = RoleWork(
            f"{script}while not os.path.exists(mark): time.sleep(0.02)", workers=2, gpus=2
        )
        roles = (works, RoleWork(f"{script}open(mark, 'w').close()"))
        workers = watch.run("env", *roles, env={"GREETING": "hello world"})
        assert watch.end("env").outcome is Outcome.SUCCEEDED
        names = ("worker-0", "worker-1", "ps-0")
        environments = [json.loads(watch.kit.log("env", 1, name)) for name in names]
        for rank, env in enumerate(environments):
            assert env["PRESAGE_JOB_ID"] == "env"
            assert env["PRESAGE_ATTEMPT"] == "1"
            assert env["PRESAGE_RANK"] == str(rank)
            assert env["PRESAGE_WORKERS"] == "3"
            assert env["GREETING"] == "hello world"
            assert {"PRESAGE_CHECKPOINT_DIR", "PRESAGE_DATA_DIR", "PRESAGE_RESULT_DIR"} <= set(env)
        devices = [env["CUDA_VISIBLE_DEVICES"] for env in environments]
        assert devices[2] == ""
        held = zip(workers[:2], devices[:2], strict=True)
        assert len({(worker.node, d) for worker, ds in held for d in ds.split(",")}) == 4

    def test_workers_of_torchrun_find_each_other(self, watch: Watcher) -> None:
        script = """
            import os, socket
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
            if rank == 0:
                with socket.create_server(place) as server:
                    peer, _ = server.accept()
                    print("met", peer.recv(9).decode(), "of", size)
            else:
                while True:
                    try: socket.create_connection(place).sendall(b"%d" % rank); break
                    except ConnectionRefusedError: pass
        """
        watch.run("pair", RoleWork(dedented(script), workers=2), launcher="torchrun")
        assert watch.end("pair").outcome is Outcome.SUCCEEDED
        assert watch.kit.log("pair", 1, "worker-0") == "met 1 of 2\n"

    def test_a_worker_that_serves_the_others_ends_with_them(self, watch: Watcher) -> None:
        watch.run("served", RoleWork("print('trained')"), RoleWork(_LONG))
        assert watch.end("served").outcome is Outcome.SUCCEEDED
        watch.assert_nothing_left("served")

    # -- resizing, where the executor can -------------------------------------------------------

    @pytest.fixture
    def counting(self, watch: Watcher) -> Counting:
        """A job of one to three workers; skipped where runs cannot be resized."""
        if not isinstance(watch.executor, CanResize):
            pytest.skip("this executor does not resize runs")
        return Counting(watch)

    def test_a_run_is_resized_and_no_step_is_lost(self, counting: Counting) -> None:
        counting.to(3)
        counting.to(2)
        steps = [step for step, _ in counting.steps()]
        assert steps == list(range(1, len(steps) + 1))
        assert {size for _, size in counting.steps()} == {1, 2, 3}
        stages = [fact.stage for fact in counting.watch.of("count", ev.StageChanged)]
        first = stages[stages.index("resizing") :]  # a launch may have had stages of its own
        assert "resizing" not in first[1 : first.index("")]
        assert len(counting.watch.of("count", ev.JobStarted)) == 1
        counting.end()

    def test_every_rank_is_told_of_a_resize_after_the_same_step(self, watch: Watcher) -> None:
        if not isinstance(watch.executor, CanResize):
            pytest.skip("this executor does not resize runs")
        workers = watch.run("told", RoleWork(dedented(_IN_STEP), workers=2, most=3))
        names = [f"worker-{rank}" for rank in range(3)]
        for now, then in ((2, 3), (3, 2)):
            watch.until_log("told", f"of {now} takes step")
            watch.resize("told", workers[:then])
            for name in names[:now]:
                watch.until_log("told", f"told: {now} to {then}", worker=name)
            watch.until_log("told", f"of {then} goes on")
            logs = [watch.kit.log("told", 1, name) for name in names[:now]]
            (last,) = {
                log.partition(f"told: {now} to {then} after ")[2].split()[0] for log in logs
            }
            for name in names[:then]:
                watch.until_log("told", f"of {then} goes on after {last}", worker=name)
        assert len(watch.of("told", ev.JobResized)) == 2
        watch.stop("told")
        assert watch.end("told").outcome is Outcome.STOPPED
        assert "Traceback" not in "".join(watch.kit.log("told", 1, name) for name in names)
        watch.assert_nothing_left("told")

    def test_a_resize_is_answered_as_often_as_it_is_sent(self, counting: Counting) -> None:
        counting.to(2)
        counting.to(2)
        counting.watch.restart()
        counting.watch.facts.clear()
        counting.watch.settle()
        counting.to(2)
        assert {size for _, size in counting.steps()} == {1, 2}
        counting.end()

    def test_an_earlier_resize_does_not_answer_for_a_later_one(self, counting: Counting) -> None:
        watch, answers = counting.watch, 0
        for _ in range(_TRIES):
            counting.to(2)
            watch.resize("count", counting.workers[:3])
            watch.restart()  # before the answer; the new executor reads everything again
            watch.facts.clear()
            watch.resize("count", counting.workers[:3])
            watch.until(lambda: watch.of("count", ev.JobResized), "resized")
            watch.until(lambda: counting.steps()[-1][1] == 3, "counting with 3")
            answers = len(watch.of("count", ev.JobResized))
            if answers == 1:  # else the answer may have come before the restart, and is repeated
                break
        assert answers == 1
        counting.end()

    def test_a_job_asks_for_workers_and_is_heard_once(self, watch: Watcher) -> None:
        script = "from presage import job\njob.request_workers(3)\n" + _LONG
        watch.run("wishes", RoleWork(script, most=3))

        def asked() -> list[ev.Fact]:
            return [fact for fact in watch.facts if isinstance(fact, ev.ScaleRequested)]

        watch.until(asked, "asked")
        assert asked() == [ev.ScaleRequested("wishes", 3)]
        watch.restart()  # the server died before it wrote that down
        watch.facts.clear()
        watch.settle()
        assert asked() == [ev.ScaleRequested("wishes", 3)]
        watch.restart()
        watch.facts.clear()
        watch.settle()
        assert not asked()
        watch.stop("wishes")
        watch.end("wishes")

    def test_a_stop_in_the_middle_of_a_resize_is_heard(self, watch: Watcher) -> None:
        if not isinstance(watch.executor, CanResize):
            pytest.skip("this executor does not resize runs")
        script = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + _LONG
        workers = watch.run("deaf", RoleWork(script, most=2), grace_s=2.0)
        watch.until_log("deaf", "up")
        watch.resize("deaf", workers)
        watch.until(lambda: watch.of("deaf", ev.StageChanged), "resizing")
        watch.stop("deaf")
        assert watch.end("deaf").outcome is Outcome.STOPPED
        assert not watch.of("deaf", ev.JobResized)
        watch.assert_nothing_left("deaf")

    # -- when nobody watches --------------------------------------------------------------------

    def test_a_run_outlives_the_executor(self, watch: Watcher) -> None:
        watch.run("steady", RoleWork(_LONG))
        watch.until_log("steady", "up")
        watch.restart()
        watch.settle()
        assert not watch.of("steady", ev.JobExited)
        watch.stop("steady")
        assert watch.end("steady").outcome is Outcome.STOPPED
        watch.assert_nothing_left("steady")

    def test_an_end_that_nobody_saw_is_told_later(self, watch: Watcher) -> None:
        watch.run("alone", RoleWork("print('done')\nraise SystemExit(5)"))
        end = time.monotonic() + watch.kit.timeout_s
        while "done" not in watch.kit.log("alone", 1, "worker-0") and time.monotonic() < end:
            time.sleep(0.01)
        watch.restart()
        assert watch.end("alone").exit_code == 5
        watch.assert_nothing_left("alone")

    def test_an_end_is_told_again_until_it_was_written_down(self, watch: Watcher) -> None:
        watch.run("heard", RoleWork("print('done')"))
        first = watch.end("heard")
        watch.restart()  # the server died before it wrote down what it had polled
        watch.facts.clear()
        assert watch.end("heard") == first
        watch.settle()
        watch.restart()
        watch.facts.clear()
        watch.settle()
        assert not watch.facts

    # -- what is kept, and what is not ----------------------------------------------------------

    def test_logs_are_complete(self, watch: Watcher) -> None:
        script = """
            import os, sys
            for n in range(5000):
                print(os.environ["PRESAGE_RANK"], n, file=(sys.stdout, sys.stderr)[n % 2])
            sys.stderr.write("the end, without a line break")
        """
        watch.run("chatty", RoleWork(dedented(script), workers=2))
        watch.end("chatty")
        watch.assert_nothing_left("chatty")
        for rank in (0, 1):
            lines = watch.kit.log("chatty", 1, f"worker-{rank}").splitlines()
            assert lines[:-1] == [f"{rank} {n}" for n in range(5000)]
            assert lines[-1] == "the end, without a line break"

    def test_a_log_that_grows_too_long_is_cut(self, watch: Watcher) -> None:
        script = r"""
            import os, time
            os.write(1, b"".join(b"line %d\n" % n for n in range(20_000)) + b"up\n")
            time.sleep(600)
        """
        watch.run("endless", RoleWork(dedented(script)))
        watch.until_log("endless", "cut]")
        watch.until_log("endless", "up\n")  # where output goes through a pipe, it takes its time
        watch.stop("endless")
        watch.end("endless")
        first, *rest = watch.kit.log("endless", 1, "worker-0").splitlines()
        assert f"passed {self.log_cap} bytes" in first
        assert rest == [*(f"line {n}" for n in range(20_001 - len(rest), 20_000)), "up"]

    def test_progress_is_passed_on(self, watch: Watcher) -> None:
        script = """
            import json, os, pathlib
            place = pathlib.Path(os.environ["PRESAGE_PROGRESS"])
            new = place.with_name("new")
            new.write_text(json.dumps({"step": 3, "steps": 4, "done": 0.75, "metrics": {"l": 2}}))
            new.replace(place)
        """
        watch.run("moving", RoleWork(dedented(script)))
        watch.end("moving")
        (progress,) = watch.of("moving", ev.Progress)
        assert progress.done == 0.75
        assert progress.detail == {"step": 3, "steps": 4, "l": 2}
        assert watch.facts.index(progress) < watch.facts.index(watch.end("moving"))

    def test_nothing_is_left_behind(self, watch: Watcher) -> None:
        script = """
            import os, subprocess, sys
            sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
            subprocess.Popen(sleeper)
            subprocess.Popen(sleeper, start_new_session=True)
            open("scratch", "w").write("work")
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.execv(sys.executable, sleeper)
        """
        watch.run("messy", RoleWork(dedented(script)))
        assert watch.end("messy").outcome is Outcome.SUCCEEDED
        watch.assert_nothing_left("messy")
