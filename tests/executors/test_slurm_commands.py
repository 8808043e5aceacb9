"""Slurm's commands against real Slurms of both versions, and what is said where there is none."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from presage.executors.slurm.commands import BatchJob, SlurmCommands, SlurmJob, StepShape
from presage.executors.slurm.doctor import examine
from presage.executors.slurm.ends import how_it_ended
from presage.model.errors import SlurmRefused, SlurmUnreachable
from tests.executors.slurm_kit import need_slurm
from tests.slurm_cluster import VERSIONS, SlurmCluster
from tests.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module", params=VERSIONS)
def slurm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SlurmCluster]:
    """A Slurm of each version, with accounting where it is quick."""
    need_slurm(request.param)
    place = tmp_path_factory.mktemp("slurm")
    accounting = request.param == "26.05"
    with SlurmCluster(request.param, place, nodes=2, gpus=4, accounting=accounting) as slurm:
        yield slurm


@pytest.fixture
def commands(slurm: SlurmCluster) -> SlurmCommands:
    """Its commands."""
    return SlurmCommands(env=slurm.env)


def _batch(script: str, place: Path, *shapes: StepShape, **options: object) -> BatchJob:
    shapes = shapes or (StepShape((), 1, 1, 0, 0),)
    text = f"#!/bin/sh\n{script}\n"
    return BatchJob("a job", shapes, text, place / "out", place, **options)  # type: ignore[arg-type]


def _over(commands: SlurmCommands, id: int) -> SlurmJob:
    def ended() -> list[SlurmJob]:
        return [job for job in commands.jobs() if job.id == id and job.over]

    return eventually(ended)[0]


def test_what_a_cluster_has(commands: SlurmCommands, slurm: SlurmCluster) -> None:
    major, minor = commands.version()
    assert f"{major}.{minor:02}" == slurm.version
    partition = commands.partition(None)
    assert (partition.name, partition.default, partition.up) == ("main", True, True)
    assert (partition.nodes, partition.default_s, partition.most_s) == (("n1", "n2"), 3600.0, None)
    first, second = commands.nodes("main")
    assert [device.type for device in first.node.devices] == ["v100"] * 4
    assert (first.node.cpu_milli, first.node.memory_mib) == (16_000, 64_000)
    assert first.usable
    assert not second.gone
    assert commands.nodes("other") == []


def test_jobs_are_read_the_same_in_all_versions(commands: SlurmCommands, tmp_path: Path) -> None:
    both = StepShape(("n1", "n2"), 2, 2, 300, 3)
    running = commands.submit(_batch("sleep 600", tmp_path, both, limit_s=600.0))
    parts = StepShape(("n1",), 1, 1, 0, 4), StepShape(("n2",), 1, 1, 0, 0)
    waiting = commands.submit(_batch("true", tmp_path, *parts, limit_s=60.0))

    def known() -> dict[int, SlurmJob]:
        return {job.id: job for job in commands.jobs(mine=True)}

    eventually(lambda: known()[running].state == "RUNNING")
    by_id = known()
    job = by_id[running]
    assert (job.name, job.state, job.nodes, job.over) == ("a job", "RUNNING", ("n1", "n2"), False)
    assert (job.cpus, job.gpus, job.memory_mib, job.limit_s) == (4, 6, 600, 600.0)
    assert job.submitted_at <= job.started_at <= time.time()
    assert by_id[waiting].waits
    assert by_id[waiting].het_id == waiting
    assert eventually(lambda: commands.starts()).keys() >= {f"{waiting}+0"}
    commands.cancel(ids=[waiting])
    commands.cancel(ids=[running])
    assert "was cancelled" in how_it_ended(_over(commands, running), commands)


def test_exit_codes_are_read(commands: SlurmCommands, tmp_path: Path) -> None:
    job = _over(commands, commands.submit(_batch("exit 3", tmp_path)))
    assert (job.state, job.exit_code, job.signal) == ("FAILED", 3, 0)
    assert how_it_ended(job, commands).endswith("its batch script failed with exit code 3")


def test_accounting_says_who_cancelled(
    commands: SlurmCommands, slurm: SlurmCluster, tmp_path: Path
) -> None:
    if slurm.version == "22.05":
        with pytest.raises(SlurmUnreachable, match="keeps no accounting"):
            commands.accounting(time.time() - 60)
        return
    id = commands.submit(_batch("sleep 600", tmp_path))
    commands.cancel(ids=[id])
    job = _over(commands, id)
    eventually(lambda: " by " in how_it_ended(job, commands))
    known = next(known for known in commands.accounting(time.time() - 600) if known.id == str(id))
    assert (known.state, known.name) == ("CANCELLED", "a job")


def test_what_slurm_refuses_is_one_line(commands: SlurmCommands, tmp_path: Path) -> None:
    with pytest.raises(SlurmRefused, match="no partition 'nope'; there are: main"):
        commands.partition("nope")
    with pytest.raises(SlurmRefused, match="node configuration is not available") as refusal:
        commands.submit(_batch("true", tmp_path, StepShape((), 1, 1, 0, 9)))
    assert "\n" not in str(refusal.value)


def test_a_controller_that_is_down_is_noticed_in_time(slurm: SlurmCluster) -> None:
    slurm.kill_controller()
    began = time.monotonic()
    try:
        with pytest.raises(SlurmUnreachable, match="controller") as failure:
            SlurmCommands(env=slurm.env, timeout_s=2.0).nodes()
        assert "\n" not in str(failure.value)
        assert time.monotonic() - began < PATIENCE_S
    finally:
        slurm.start_controller()
        again = SlurmCommands(env=slurm.env)
        eventually(lambda: all(node.usable for node in again.nodes()))


@pytest.mark.soak
def test_a_controller_that_dies_in_the_middle_of_a_word_refuses_nothing(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    """What sbatch, squeue and scontrol say then is about the controller, never about a job."""
    said, ends = list[str](), threading.Event()
    commands = SlurmCommands(env=slurm.env)

    def ask(question: Callable[[], object]) -> None:
        while not ends.is_set():
            try:
                question()
            except SlurmUnreachable as error:
                said.append(str(error))
            except SlurmRefused as error:
                said.append(f"REFUSED {error}")

    batch = _batch("true", tmp_path)
    questions: list[Callable[[], object]] = [lambda: commands.submit(batch)] * 2
    questions += [lambda: commands.jobs(mine=True), commands.nodes]
    threads = [threading.Thread(target=ask, args=(question,)) for question in questions]
    for thread in threads:
        thread.start()
    try:
        for kill in range(12):
            eventually(lambda: commands.jobs(mine=True) is not None)
            slurm.kill_controller(signal.SIGTERM if kill % 3 == 2 else signal.SIGKILL)
            slurm.start_controller()
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    assert said
    assert [text for text in said if text.startswith("REFUSED")] == []


@pytest.mark.parametrize(
    "said",
    [
        "sbatch: error: Batch job submission failed: Connection reset by peer",
        "sbatch: error: Batch job submission failed: Unexpected missing socket error",
        "squeue: error: failed to connect to any sack sockets\nslurm_load_jobs error: Protocol "
        "authentication error",
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
    ],
)
def test_what_a_dying_controller_has_said_is_no_refusal(said: str, tmp_path: Path) -> None:
    program = tmp_path / "sbatch"
    program.write_text(f"#!/bin/sh\ncat >&2 <<'end'\n{said}\nend\nexit 1\n")
    program.chmod(0o755)
    commands = SlurmCommands(env={"PATH": f"{tmp_path}:/bin:/usr/bin"})
    with pytest.raises(SlurmUnreachable, match="controller does not answer sbatch"):
        commands.submit(_batch("true", tmp_path))


def test_the_doctor_finds_what_is_there(
    commands: SlurmCommands, slurm: SlurmCluster, tmp_path: Path
) -> None:
    found = {one.what: one for one in examine(commands, None, tmp_path / "data")}
    assert [one for one in found.values() if one.needed and not one.good] == []
    assert found["data directory and Python on a node"].good
    assert found["accounting"].good == (slurm.version == "26.05")
    assert not list((tmp_path / "data" / "slurm").iterdir())
    wrong = {one.what: one for one in examine(commands, "nope")}
    assert not wrong["partition"].good
    assert "there are: main" in wrong["partition"].text


def test_no_slurm_and_an_old_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SlurmUnreachable, match="there is no Slurm here: sinfo is not on PATH"):
        SlurmCommands(env={"PATH": str(tmp_path)}).version()
    old = tmp_path / "sinfo"
    old.write_text(
        "#!/bin/sh\necho 'sinfo: error: Could not establish a configuration source' >&2\nexit 1\n"
    )
    old.chmod(0o755)
    (tmp_path / "scontrol").symlink_to(old)
    with pytest.raises(SlurmUnreachable, match="Slurm is not set up here: set SLURM_CONF"):
        SlurmCommands(env={"PATH": f"{tmp_path}:/bin:/usr/bin"}).version()
    old.write_text("#!/bin/sh\necho slurm 20.11.4\n")
    old.chmod(0o755)
    with pytest.raises(SlurmUnreachable, match=r"Slurm 20\.11 is too old: Presage needs 21\.08"):
        SlurmCommands(env={"PATH": f"{tmp_path}:/bin:/usr/bin"}).version()
