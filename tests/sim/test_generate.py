"""Synthetic traces: reproducible, of the shape and load that was asked for."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from presage.model.errors import TraceError
from presage.sim.generate import KINDS, make_trace, write_trace
from presage.sim.traces import COLUMNS, Trace, read_trace
from tests.counting import opcodes


def offered_load(trace: Trace, gpus: int) -> float:
    work = trace.jobs.select(
        (pl.col("gpu_milli") * pl.col("workers").fill_null(1) * pl.col("duration_s")).sum()
    ).item()
    span = trace.jobs.get_column("submit_s")[-1]
    return float(work / 1000 / span / gpus)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_names_a_trace(kind: str) -> None:
    first, again, other = (make_trace(kind, 500, seed, 240) for seed in (1, 1, 2))
    assert first.jobs.equals(again.jobs)
    assert not first.jobs.equals(other.jobs)
    assert make_trace(kind, 500, np.random.default_rng(1), 240).jobs.equals(first.jobs)
    assert dict(first.jobs.schema) == COLUMNS
    assert first.jobs.get_column("submit_s").is_sorted()
    assert first.jobs.get_column("submit_s")[0] == 0
    for name in ("submit_s", "duration_s"):
        seconds = first.jobs.get_column(name)
        assert (seconds == seconds.floor()).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("load", [0.5, 2.0])
def test_the_offered_load_is_the_one_asked_for(kind: str, load: float) -> None:
    loads = [offered_load(make_trace(kind, 20_000, seed, 400, load), 400) for seed in range(5)]
    assert np.mean(loads) == pytest.approx(load, rel=0.02)


@pytest.mark.parametrize(("kind", "load"), [("dlaas", 1.1), ("poisson", 0.95), ("diurnal", 0.95)])
def test_the_default_load(kind: str, load: float) -> None:
    assert offered_load(make_trace(kind, 100_000, 0, 400), 400) == pytest.approx(load, rel=0.02)


def test_dlaas_jobs_have_the_published_shape() -> None:
    jobs = make_trace("dlaas", 40_000, 0, 400).jobs
    assert set(jobs.get_column("workers")) == set(range(1, 9))
    assert set(jobs.get_column("gpu_milli")) == {1000, 2000, 3000, 4000}
    assert set(jobs.get_column("cpu_milli")) == {1000 * cores for cores in range(4, 17)}
    memory = jobs.get_column("memory_mib") * 1000 / jobs.get_column("cpu_milli")
    assert memory.n_unique() == 1
    durations = jobs.get_column("duration_s").to_numpy()
    assert np.median(durations) == pytest.approx(7200, rel=0.03)
    assert np.log(durations).std() == pytest.approx(1.0, rel=0.03)
    gaps = np.diff(jobs.get_column("submit_s").to_numpy())
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)


def test_philly_like_jobs_are_small_and_heavy_tailed() -> None:
    jobs = make_trace("poisson", 50_000, 0, 240).jobs
    sizes = jobs.get_column("gpu_milli")
    assert set(sizes) == {1000 * size for size in (1, 2, 4, 8, 16, 32)}
    assert (sizes == 1000).mean() == pytest.approx(0.93, abs=0.01)
    durations = jobs.get_column("duration_s").to_numpy()
    assert durations.mean() > 3 * np.median(durations)
    assert durations.min() >= 1


def test_jobs_larger_than_the_cluster_are_not_drawn() -> None:
    assert make_trace("poisson", 5000, 0, 4).jobs.get_column("gpu_milli").max() == 4000


def test_diurnal_arrivals_have_a_day_and_a_week() -> None:
    submit = make_trace("diurnal", 200_000, 0, 240).jobs.get_column("submit_s").to_numpy()
    weeks = submit[submit < submit[-1] // 604_800 * 604_800]
    assert weeks.size > 100_000
    days = np.bincount((weeks // 86_400 % 7).astype(int))
    assert days[5:].mean() == pytest.approx(days[:5].mean() / 2, rel=0.05)
    hours = np.bincount((weeks // 3600 % 24).astype(int))
    assert hours.argmax() in (14, 15)
    assert hours.argmin() in (2, 3)
    steady = make_trace("poisson", 200_000, 0, 240).jobs.get_column("submit_s").to_numpy()
    flat = np.bincount((steady // 3600 % 24).astype(int))
    assert flat.max() < 1.2 * flat.min()


@pytest.mark.parametrize("name", ["trace.parquet", "trace.csv"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_reads_back_as_it_was_written(tmp_path: Path, kind: str, name: str) -> None:
    made = make_trace(kind, 300, 3, 240)
    write_trace(made, tmp_path / name)
    read = read_trace(tmp_path / name)
    assert read.jobs.equals(made.jobs)
    assert (read.format, read.integer_ids) == ("native", True)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_writing_leaves_nothing_behind_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_the_disk(self: pl.DataFrame, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    target = tmp_path / "trace.parquet"
    target.write_text("the old one")
    monkeypatch.setattr(pl.DataFrame, "write_parquet", fill_the_disk)
    with pytest.raises(TraceError, match="No space left"):
        write_trace(make_trace("dlaas", 5, 0, 8), target)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.parquet"]
    assert target.read_text() == "the old one"


@pytest.mark.parametrize(
    ("kind", "jobs", "gpus", "load", "says"),
    [
        (
            "weekly",
            10,
            8,
            None,
            "unknown kind of trace 'weekly'; there are poisson, diurnal, dlaas",
        ),
        ("dlaas", 0, 8, None, "cannot make 0 jobs"),
        ("dlaas", 10, 0, None, "without GPUs"),
        ("dlaas", 10, 8, 0.0, "load must be above 0"),
        ("dlaas", 10, 8, float("nan"), "load must be above 0"),
    ],
)
def test_bad_wishes_are_refused(
    kind: str, jobs: int, gpus: int, load: float | None, says: str
) -> None:
    with pytest.raises(TraceError, match=says):
        make_trace(kind, jobs, 0, gpus, load)


def test_bad_targets_are_refused(tmp_path: Path) -> None:
    trace = make_trace("dlaas", 5, 0, 8)
    with pytest.raises(TraceError, match=r"end the name in \.parquet or \.csv"):
        write_trace(trace, tmp_path / "trace.txt")
    with pytest.raises(TraceError, match="cannot write"):
        write_trace(trace, tmp_path / "nowhere" / "trace.csv")


def test_making_is_vectorised() -> None:
    """A loop over jobs in Python would take many seconds for a million of them."""
    assert make_trace("diurnal", 300_000, 0, 10_000).jobs.height == 300_000
    few, many = (
        opcodes(partial(make_trace, "diurnal", jobs, 0, 10_000)) for jobs in (1000, 300_000)
    )
    assert many < few + 1000
