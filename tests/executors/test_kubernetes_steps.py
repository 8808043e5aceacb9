"""The step beside a job in its pod: what it measures, and how the server hears of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from presage.executors.kubernetes.hearing import StepsHeard
from presage.executors.kubernetes.logs import _said
from presage.executors.kubernetes.steps import _Meter
from presage.executors.node.messages import ProgressReport, StepWord
from presage.executors.node.plan import bare_plan
from presage.executors.node.runspec import RunSpec
from presage.executors.node.samples import SampleLog
from presage.executors.node.wire import MessageError, pack
from presage.layout import Layout
from presage.telemetry.rows import Row, line_of, rows
from tests.executors.kubernetes_kit import write_job
from tests.waiting import eventually

_BUSY = "held = b'x' * (64 << 20); print('held', flush=True)\nwhile True: pass"


def test_a_worker_is_measured_with_what_runs_beside_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_job(tmp_path, "j", image="i", command="train")
    layout = Layout(tmp_path)
    plan = bare_plan(layout, RunSpec.load(layout.job_file("j")), "j", 1)
    plan.work.mkdir(parents=True)
    argv = [sys.executable, "-c", _BUSY]
    one, other = (subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in range(2))
    try:
        for process in (one, other):
            assert process.stdout is not None
            process.stdout.readline()
        meter = _Meter(plan, "worker-0")
        meter.look([one.pid])
        meter.look([one.pid])  # it is not time yet
        (first,) = (_said(line.encode()) for line in capfd.readouterr().out.splitlines())
        assert isinstance(first, Row)
        assert first.worker == "worker-0"
        assert first.rss_mib is not None
        assert first.rss_mib > 64
        assert first.processes == 1
        assert first.disk_total_mib

        def both() -> bool:
            meter.look([one.pid, other.pid])
            said = [_said(line.encode()) for line in capfd.readouterr().out.splitlines()]
            return any(isinstance(row, Row) and row.processes == 2 for row in said)

        eventually(both)
    finally:
        for process in (one, other):
            process.kill()
            process.communicate()


def test_words_and_rows_are_told_apart() -> None:
    row = Row(round(time.time(), 1), "worker-0", cpu_s=1.0, rss_mib=12.5)
    assert _said(line_of(row)) == row
    word = StepWord(progress=ProgressReport(done=0.5, detail={}))
    assert _said(json.dumps(pack(word)).encode()) == word
    with pytest.raises(MessageError):
        _said(b"Traceback (most recent call last):")


def test_what_is_heard_again_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "telemetry"
    first = [Row(float(at), "worker-0", cpu_s=float(at)) for at in (1, 2)]
    SampleLog(path).add(first)
    after = SampleLog(path)  # a server that starts again hears all of it once more
    after.add([*first, Row(3.0, "worker-0", cpu_s=3.0), Row(1.5, "worker-1", cpu_s=0.0)])
    found = [(row.at, row.worker) for row in rows(path.read_bytes().splitlines())]
    assert found == [(1.0, "worker-0"), (2.0, "worker-0"), (3.0, "worker-0"), (1.5, "worker-1")]


def test_progress_is_told_once_and_by_the_first_worker(tmp_path: Path) -> None:
    told: list[ProgressReport] = []
    heard = StepsHeard(tmp_path / "telemetry", told.append)
    half, whole = (ProgressReport(done=done, detail={}) for done in (0.5, 1.0))
    for worker, report in (
        ("worker-0", half),
        ("worker-0", half),
        ("worker-1", whole),
        ("worker-0", None),
        ("worker-0", whole),
    ):
        heard.hear(worker, StepWord(progress=report), "worker-0")
    assert told == [half, whole]
    heard.hear("worker-1", Row(1.0, "as the pod calls it", rss_mib=12.5), "worker-0")
    assert heard.used_mib == {"worker-1": 12.5}
    (row,) = rows((tmp_path / "telemetry").read_bytes().splitlines())
    assert (row.worker, row.rss_mib) == ("worker-1", 12.5)
