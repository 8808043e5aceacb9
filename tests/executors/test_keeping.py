"""What a run leaves in its working directory is kept: which files, how, and what is said of it."""

from __future__ import annotations

import io
import json
import os
import signal
import tarfile
from pathlib import Path
from typing import Any

import pytest

from presage.executors.node import keeping
from presage.model import event as ev
from presage.model.cluster import Worker
from presage.model.event import JobExited, Outcome
from presage.model.job import Reason, ReasonCode, StopIntent
from presage.testing.runs import Watcher
from tests.executors.kit import LocalKit


def _pack(path: Path, files: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))


def _start(kit: LocalKit, watch: Watcher, job: str, script: str, **manifest: Any) -> None:
    kit.write_job(job, command=["python", "-c", script], **manifest)
    watch.executor.launch(ev.Launch(job, 1, (Worker(0, 0, "n0"),)))


def _end(watch: Watcher, job: str) -> tuple[JobExited, str]:
    exited = watch.end(job)
    assert exited.reason is not None
    return exited, exited.reason.text


def _kept(kit: LocalKit, job: str) -> dict[str, str]:
    home = kit.data / "jobs" / job / "results"
    files = [path for path in home.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(home)): path.read_text() for path in sorted(files)}


def _note(kit: LocalKit, job: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((kit.data / "jobs" / job / "results.json").read_text())
    return body


def test_new_and_changed_files_of_the_work_directory_are_results(
    kit: LocalKit, watch: Watcher
) -> None:
    _pack(kit.data / "folders" / "abc.tar.gz", {"net.py": "W = 4\n", "log.txt": "before\n"})
    script = """
import os, pathlib
import net
pathlib.Path("model.pt").write_text("weights")
pathlib.Path("out/deep").mkdir(parents=True)
pathlib.Path("out/deep/x.csv").write_text("1,2")
with open("log.txt", "a") as log: log.write("after\\n")
os.symlink("/etc/passwd", "way-out")
os.symlink("/etc", "way-out-too")
pathlib.Path("ckpt/state").write_text("saved")
pathlib.Path(os.environ["PRESAGE_RESULT_DIR"], "asked").write_text("for")
"""
    _start(kit, watch, "left", script, folder="abc", checkpoint={"dir": "ckpt"})
    exited, text = _end(watch, "left")
    assert exited.outcome is Outcome.SUCCEEDED, kit.log("left", 1, "worker-0")
    assert _kept(kit, "left") == {
        "asked": "for",
        "log.txt": "before\nafter\n",
        "model.pt": "weights",
        "out/deep/x.csv": "1,2",
    }
    assert text == "every worker ended well; 4 result files (26 B)"
    assert (_note(kit, "left")["files"], _note(kit, "left")["bytes"]) == (4, 26)
    watch.assert_nothing_left("left")


@pytest.mark.parametrize("how", ["fails", "is stopped", "loses its guardian"])
def test_what_a_run_that_did_not_end_well_left_is_kept(
    kit: LocalKit, watch: Watcher, how: str
) -> None:
    script = "import time; open('half.pt', 'w').write('so far'); print('up', flush=True)\n"
    script += "raise SystemExit(3)" if how == "fails" else "time.sleep(600)"
    _start(kit, watch, "bad", script)
    if how == "is stopped":
        watch.until(lambda: "up" in kit.log("bad", 1, "worker-0"), "up")
        why = Reason(ReasonCode.PREEMPTED, "made room")
        watch.executor.stop(ev.Stop("bad", 1, StopIntent.REQUEUE, why))
    elif how == "loses its guardian":
        watch.until(lambda: "up" in kit.log("bad", 1, "worker-0"), "up")
        os.kill(kit.guardian_pid("bad"), signal.SIGKILL)
    _, text = _end(watch, "bad")
    assert _kept(kit, "bad") == {"half.pt": "so far"}
    assert text.endswith("; 1 result file (6 B)")
    watch.assert_nothing_left("bad")


def test_a_later_run_replaces_what_an_earlier_one_left(kit: LocalKit, watch: Watcher) -> None:
    script = (
        "import os; open('model.pt', 'w').write('of attempt ' + os.environ['PRESAGE_ATTEMPT'])"
    )
    _start(kit, watch, "twice", script)
    watch.end("twice")
    watch.settle()
    watch.executor.launch(ev.Launch("twice", 2, (Worker(0, 0, "n0"),)))
    watch.end("twice", 2)
    assert _kept(kit, "twice") == {"model.pt": "of attempt 2"}


def test_patterns_choose_what_is_kept(kit: LocalKit, watch: Watcher) -> None:
    script = """
import pathlib
for name in ("a.pt", "tmp/b.pt", "out/c.csv", "notes.txt"):
    pathlib.Path(name).parent.mkdir(exist_ok=True)
    pathlib.Path(name).write_text(name)
"""
    choice = {"keep": ["*.pt", "out/**"], "ignore": ["tmp/"]}
    _start(kit, watch, "some", script, results=choice)
    watch.end("some")
    assert list(_kept(kit, "some")) == ["a.pt", "out/c.csv"]


def test_what_is_put_into_the_result_directory_is_not_kept_twice(
    kit: LocalKit, watch: Watcher
) -> None:
    script = """
import os, pathlib, shutil
there = pathlib.Path(os.environ["PRESAGE_RESULT_DIR"])
os.symlink(there, "results")
for name in ("same", "other"):
    pathlib.Path(name).write_text(name)
    shutil.copy(name, there)
(there / "other").write_text("put there by hand")
"""
    _start(kit, watch, "both", script)
    watch.end("both")
    assert _kept(kit, "both") == {
        "from-work/other": "other",
        "other": "put there by hand",
        "same": "same",
    }


def test_more_than_a_job_may_keep_is_left_out_by_name(kit: LocalKit, watch: Watcher) -> None:
    script = """
import os
for n, size in enumerate((700_000, 600_000, 300_000)):
    with open(f"{n}.bin", "wb") as file: file.write(b"x" * size)
    os.utime(f"{n}.bin", (2_000_000_000 + n, 2_000_000_000 + n))
"""
    _start(kit, watch, "much", script, results={"limit": "1Mi"})
    exited, text = _end(watch, "much")
    assert exited.outcome is Outcome.SUCCEEDED
    assert list(_kept(kit, "much")) == ["1.bin", "2.bin"]  # the newest that fit
    assert "2 result files (879 KiB)" in text
    assert "1 file LEFT OUT, since a job may keep 1.0 MiB: 0.bin 684 KiB" in text
    assert _note(kit, "much")["left_out"] == [{"path": "0.bin", "bytes": 700_000, "why": "limit"}]


def test_links_in_the_result_directory_lead_nowhere(
    kit: LocalKit, watch: Watcher, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    script = f"""
import os, pathlib
os.symlink({str(outside)!r}, os.path.join(os.environ["PRESAGE_RESULT_DIR"], "out"))
pathlib.Path("out").mkdir()
pathlib.Path("out/planted").write_text("x")
"""
    _start(kit, watch, "sly", script, results=f"{tmp_path}/copied")
    _, text = _end(watch, "sly")
    assert "1 file LEFT OUT: out/planted 1 B" in text
    assert not any(outside.iterdir())
    assert not (tmp_path / "copied" / "out").exists()


def test_results_are_also_copied_from_a_run_that_failed(
    kit: LocalKit, watch: Watcher, tmp_path: Path
) -> None:
    script = "open('a.pt', 'w').write('a'); raise SystemExit(1)"
    _start(kit, watch, "sad", script, results=f"{tmp_path}/copied")
    assert _end(watch, "sad")[0].outcome is Outcome.FAILED
    assert (tmp_path / "copied" / "a.pt").read_text() == "a"


def test_a_file_of_another_file_system_is_copied_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from presage.executors.node.messages import RunPlan

    work, results = tmp_path / "work", tmp_path / "results"
    work.mkdir()
    results.mkdir()
    (work / "a").write_text("whole")
    plan = RunPlan(work=work, result_dir=results)  # type: ignore[call-arg]
    real, seen = os.rename, []

    def rename(source: str, target: str, **where: int) -> None:
        if source == "a":
            raise OSError(18, "Invalid cross-device link")
        seen.append([path.name for path in results.iterdir()])
        real(source, target, **where)

    monkeypatch.setattr(os, "rename", rename)
    assert keeping._move(plan, "a", 0)
    assert seen[0] != ["a"]
    assert [path.name for path in results.iterdir()] == ["a"]
    assert (results / "a").read_text() == "whole"
