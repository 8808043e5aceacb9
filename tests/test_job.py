"""`presage.job` in real processes: stopped, killed, started again; and in one, piece by piece."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from presage import job
from presage.manifest import advice, read_manifest
from tests.waiting import PATIENCE_S

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "train"
SOURCE = str(Path(job.__file__).parent.parent)
QUIET = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
WAIT_S = PATIENCE_S

COUNTER = """\
import os, sys, time
from pathlib import Path
from presage import job

count = 0

def save(directory):
    (directory / "count").write_text(str(count))
    if count == int(os.environ.get("STUCK_AT", -1)):
        print("stuck", flush=True)
        time.sleep(600)

def load(directory):
    global count
    count = int((directory / "count").read_text())

job.checkpoint(save, load)
print("continues" if job.restore() else "starts", count, flush=True)
while count < int(os.environ.get("STEPS", 1_000_000)):
    count += 1
    job.step(step=count, steps=1_000_000, metrics={"count": count})
    if count % 10 == 0:
        print(count, flush=True)
    time.sleep(0.001)
print("done", count)
"""


class Run:
    """A script under way, in a directory of its own."""

    def __init__(self, script: str | Path, folder: Path, **env: str) -> None:
        command = [str(script)] if isinstance(script, Path) else ["-c", script]
        clean = {name: text for name, text in os.environ.items() if "PRESAGE" not in name}
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env=clean | QUIET | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self, starts: str) -> str:
        """The next line on stdout that starts so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(starts):
                return line.strip()
        raise AssertionError(f"no line starts with {starts!r}: {self.process.communicate()[1]}")

    def end(self, number: int | None = None) -> tuple[int, str, str]:
        """Exit code, stdout and stderr; a signal can be sent first."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, out, err


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[list[Run]]:
    """What is started here is gone in the end."""
    started: list[Run] = []
    yield started
    for run in started:
        run.process.kill()
        run.process.communicate()


def checkpoints(folder: Path) -> dict[str, int]:
    found = sorted((folder / "checkpoints").glob("*"))
    return {path.name: int((path / "count").read_text()) for path in found}


def test_a_stopped_training_saves_and_continues(tmp_path: Path, runs: list[Run]) -> None:
    progress = tmp_path / "progress.json"
    runs.append(Run(COUNTER, tmp_path, PRESAGE_PROGRESS=str(progress)))
    assert runs[0].line("starts") == "starts 0"
    runs[0].line("20")
    code, _, err = runs[0].end(signal.SIGTERM)
    assert code == job.STOPPED == 143
    (saved,) = checkpoints(tmp_path).values()
    assert saved >= 20
    assert "asked to stop; saved" in err
    told = json.loads(progress.read_text())
    assert told["step"] == saved
    assert told["metrics"] == {"count": saved}
    assert told["done"] == pytest.approx(saved / 1_000_000)
    assert time.time() - 600 < told["at"] <= time.time()

    runs.append(Run(COUNTER, tmp_path, STEPS=str(saved + 5)))
    code, out, _ = runs[1].end()
    assert code == 0
    assert out.splitlines()[0] == f"continues {saved}"
    assert out.splitlines()[-1] == f"done {saved + 5}"


def test_a_kill_in_the_middle_of_a_save_leaves_the_previous(
    tmp_path: Path, runs: list[Run]
) -> None:
    every = {"PRESAGE_CHECKPOINT_EVERY": "0"}
    runs.append(Run(COUNTER, tmp_path, STUCK_AT="5", **every))
    runs[0].line("stuck")
    unfinished = tmp_path / "checkpoints" / ".saving-00000005"
    assert (unfinished / "count").read_text() == "5"
    assert runs[0].end(signal.SIGKILL)[0] == -signal.SIGKILL
    assert unfinished.exists()
    runs.append(Run(COUNTER, tmp_path, STEPS="6", **every))
    assert runs[1].end()[1].splitlines() == ["continues 4", "done 6"]
    assert checkpoints(tmp_path) == {"checkpoint-00000005": 5, "checkpoint-00000006": 6}


def test_kills_at_any_moment_lose_no_more_than_the_last_steps(
    tmp_path: Path, runs: list[Run]
) -> None:
    reached = 0
    for i in range(6):
        runs.append(Run(COUNTER, tmp_path, PRESAGE_CHECKPOINT_EVERY="0"))
        word = "continues" if i else "starts"
        assert int(runs[-1].line(word).split()[1]) >= reached
        reached = int(runs[-1].line(""))  # a step is saved before it is printed
        time.sleep(0.003 * i)
        runs[-1].end(signal.SIGKILL)
    assert reached >= 60


def test_rank_0_saves_and_the_others_wait_for_it(tmp_path: Path, runs: list[Run]) -> None:
    runs += [
        Run(COUNTER, tmp_path, PRESAGE_RANK=str(rank), PRESAGE_WORKERS="2") for rank in (0, 1)
    ]
    for run in runs:
        run.line("10")
    runs[1].process.send_signal(signal.SIGTERM)
    runs[1].line("40")  # goes on: a training in step with rank 0 needs it
    assert not checkpoints(tmp_path)
    assert runs[0].end(signal.SIGTERM)[0] == job.STOPPED
    assert runs[1].end()[0] == job.STOPPED
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert names == {"checkpoint-00000001", ".ended-1"}


def test_a_full_disk_does_not_stop_a_training(tmp_path: Path, runs: list[Run]) -> None:
    """/dev/full is a disk without room; checkpoints go where there can be no directory."""
    (tmp_path / "file").touch()
    script = COUNTER.replace(
        "job.checkpoint(save, load)",
        "import os; os.symlink('/dev/full', f'p.json.{os.getpid()}')\njob.checkpoint(save, load)",
    ).replace("while", "job.allocation().checkpoint_dir.rename('moved')\nopen('c', 'w')\nwhile")
    (tmp_path / "c").mkdir()
    env = {"PRESAGE_PROGRESS": "p.json", "PRESAGE_CHECKPOINT_EVERY": "0.01"}
    runs.append(Run(script, tmp_path, STEPS="50", PRESAGE_CHECKPOINT_DIR="c", **env))
    code, out, err = runs[0].end()
    assert (code, out.splitlines()[-1]) == (0, "done 50")
    assert err.count("progress is not reported, the training goes on: [Errno 28]") == 1
    assert "no checkpoint was saved, the training goes on" in err


FORKS = """\
import multiprocessing, signal, sys, time
from presage import job

def listen(number, frame):
    print("told", flush=True)

def load_data(ready):
    ready.set()
    time.sleep(600)

signal.signal(signal.SIGTERM, listen)
job.checkpoint(lambda path: None, lambda path: None)
context = multiprocessing.get_context("fork")
ready = context.Event()
child = context.Process(target=load_data, args=(ready,))
child.start()
ready.wait()
child.terminate()
child.join()
print("child", child.exitcode, flush=True)
while True:
    job.step()
    time.sleep(0.001)
"""


def test_who_listened_before_is_told_and_children_die_as_usual(
    tmp_path: Path, runs: list[Run]
) -> None:
    runs.append(Run(FORKS, tmp_path))
    assert runs[0].line("child") == f"child {-signal.SIGTERM}"
    code, out, _ = runs[0].end(signal.SIGTERM)
    assert (code, out) == (job.STOPPED, "told\n")


def test_the_numpy_example_ends_as_if_it_had_not_been_stopped(
    tmp_path: Path, runs: list[Run]
) -> None:
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    whole.mkdir()
    parted.mkdir()
    runs.append(Run(EXAMPLES / "train.py", whole))
    code, out, _ = runs[0].end()
    assert code == 0
    assert (whole / "results" / "network.npz").exists()
    runs.append(Run(EXAMPLES / "train.py", parted))
    runs[1].line("epoch 3")
    assert runs[1].end(signal.SIGTERM)[0] == job.STOPPED
    runs.append(Run(EXAMPLES / "train.py", parted))
    assert int(runs[2].line("continuing").split()[-1]) >= 3
    assert runs[2].end()[1].splitlines()[-2:] == out.splitlines()[-2:]
    assert out.splitlines()[-2].endswith("100.0% right")


TWICE = """\
import sys
sys.path.insert(0, EXAMPLES)
sys.argv += ["--epochs", "5", "--pictures", "1024"]
import train_torch
from presage import job

try:
    train_torch.main()
except SystemExit as ended:
    print("ended", ended.code, flush=True)
job._stop.asked = False
train_torch.main()
"""


@pytest.mark.slow
def test_the_pytorch_example_continues(tmp_path: Path, runs: list[Run]) -> None:
    """Twice in one process, since PyTorch takes seconds to import."""
    pytest.importorskip("torch")
    runs.append(Run(TWICE.replace("EXAMPLES", repr(str(EXAMPLES))), tmp_path))
    runs[0].line("epoch 1")
    runs[0].process.send_signal(signal.SIGTERM)
    assert runs[0].line("ended") == f"ended {job.STOPPED}"
    assert 1 <= int(runs[0].line("continuing").split()[-1]) < 5
    code, out, _ = runs[0].end()
    assert code == 0
    right = float(out.splitlines()[-2].rpartition(", ")[2].partition("%")[0])
    assert right > 60, "it learned; chance would be 33 %"
    assert (tmp_path / "results" / "network.pt").exists()


@pytest.mark.parametrize("name", ["presage.yaml", "torch.yaml"])
def test_the_manifests_of_the_examples_are_flawless(name: str) -> None:
    manifest = read_manifest(EXAMPLES / name)
    assert advice(manifest, EXAMPLES) == []


def test_importing_it_costs_a_training_little() -> None:
    """Counted in modules, since a count is the same on every machine; some 30 ms."""
    script = (
        "import sys; before = set(sys.modules); import presage.job\n"
        "print(*(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {SOURCE!r})\n{script}"],
        capture_output=True,
        text=True,
        check=True,
    )
    modules = set(done.stdout.split())
    assert {name for name in modules if name.startswith("presage")} == {"presage", "presage.job"}
    assert {name.partition(".")[0] for name in modules} - sys.stdlib_module_names == {"presage"}
    dear = {"asyncio", "ctypes", "dataclasses", "inspect", "logging", "socket", "subprocess"}
    assert not modules & dear
    assert len(modules) <= 50  # 38 of them with Python 3.11


# In this process.


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A library that was just imported, in a process without Presage, in an empty directory."""
    for name in [*os.environ]:
        if name.startswith("PRESAGE_") or name in ("RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job, "_saving", None)
    monkeypatch.setattr(job, "_report", job._ProgressFile())
    monkeypatch.setattr(job, "_stop", job._SignalWatch())
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


def test_without_presage_a_process_is_alone(fresh: Path) -> None:
    given = job.allocation()
    assert given[:6] == ("local", 1, 0, 1, "worker", ())
    assert (given.checkpoint_dir, given.data_dir, given.result_dir) == (
        Path("checkpoints"),
        Path("data"),
        Path("results"),
    )
    job.step(step=1, steps=2, metrics={"loss": 1.0})
    assert not list(fresh.iterdir())
    assert not job.stopping()


def test_the_allocation_is_what_the_environment_says(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "PRESAGE_JOB_ID": "j-1",
        "PRESAGE_ATTEMPT": "3",
        "PRESAGE_RANK": "1",
        "PRESAGE_WORKERS": "4",
        "PRESAGE_ROLE": "ps",
        "CUDA_VISIBLE_DEVICES": "2, 5",
        "RANK": "9",
        "WORLD_SIZE": "16",
    }.items():
        monkeypatch.setenv(name, text)
    assert job.allocation()[:6] == ("j-1", 3, 1, 4, "ps", ("2", "5"))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert job.allocation()[2:4] == (9, 16)
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ValueError, match="RANK is 'first', not a whole number"):
        job.allocation()


def test_two_checkpoints_are_kept(fresh: Path) -> None:
    count = 0
    job.checkpoint(lambda path: (path / "count").write_text(str(count)), lambda path: None)
    assert not job.restore()
    for count in range(1, 5):
        assert job.save() == fresh / "checkpoints" / f"checkpoint-{count:08}"
    assert checkpoints(fresh) == {"checkpoint-00000003": 3, "checkpoint-00000004": 4}
    assert job.restore()


def test_a_save_that_fails_leaves_nothing(fresh: Path) -> None:
    def save(path: Path) -> None:
        (path / "half").touch()
        raise TypeError("a mistake in the script")

    job.checkpoint(save, lambda path: None, every_s=0)
    with pytest.raises(TypeError, match="mistake"):
        job.step()
    assert not list((fresh / "checkpoints").iterdir())


def test_each_rank_can_keep_its_own(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRESAGE_RANK", "3")
    job.checkpoint(lambda path: None, lambda path: None)
    assert job.save() is None
    job.checkpoint(lambda path: None, lambda path: None, each_rank=True)
    assert job.save() == fresh / "checkpoints" / "rank-3" / "checkpoint-00000001"


def test_nothing_can_be_restored_before_it_was_said_how(fresh: Path) -> None:
    with pytest.raises(RuntimeError, match=r"presage.job.checkpoint\(save, load\) first"):
        job.restore()


def test_progress_is_written_at_most_once_a_second(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRESAGE_PROGRESS", "p.json")
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def told() -> object:
        return json.loads((fresh / "p.json").read_text())["step"]

    job.progress(step=1)
    assert told() == 1
    now += 0.9
    job.progress(step=2)
    assert told() == 1
    now += 0.2
    job.progress(step=3)
    assert told() == 3
    job.progress(step=4)
    job._report.flush()  # as at exit
    assert told() == 4


def test_progress_takes_numbers_of_all_kinds(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = pytest.importorskip("numpy")
    monkeypatch.setenv("PRESAGE_PROGRESS", "p.json")
    job.progress(
        epoch=numpy.int64(2),
        done=1.5,
        metrics={"a": numpy.float32(0.5), "b": float("nan"), "c": numpy.array(3)},
    )
    told = json.loads((fresh / "p.json").read_text())
    assert (told["epoch"], told["step"], told["done"]) == (2, None, 1.0)
    assert told["metrics"] == {"a": 0.5, "b": None, "c": 3.0}
    assert [path.name for path in fresh.iterdir()] == ["p.json"]


def test_a_metric_that_is_no_number_is_told_once(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PRESAGE_PROGRESS", "p.json")
    for _ in range(2):
        job.progress(metrics={"loss": "low"})
        job._report.flush()
    assert capsys.readouterr().err.count("progress is not reported") == 1
