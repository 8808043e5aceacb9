"""Trace readers: what each format means, and that bad input is refused by its row."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path

import polars as pl
import pytest

from presage.model.errors import TraceError
from presage.sim.traces import COLUMNS, FORMATS, Trace, read_trace
from presage.sim.traces._slurm import clock_seconds, mebibytes
from tests.counting import opcodes

NATIVE = "job_id,submit_s,duration_s,gpus\n"
SACCT_HEAD = (
    "JobID|User|Account|Partition|Submit|Start|End|State|Elapsed|Timelimit|"
    "AllocTRES|ReqTRES|NNodes|NCPUS|ReqMem\n"
)


def write(tmp_path: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def column(trace: Trace, name: str) -> list[object]:
    return trace.jobs.get_column(name).to_list()


def assert_well_formed(trace: Trace) -> None:
    assert dict(trace.jobs.schema) == COLUMNS
    submit = trace.jobs.get_column("submit_s")
    assert submit.is_sorted()
    assert submit[0] == 0
    assert trace.jobs.get_column("job_id").n_unique() == trace.jobs.height
    optional = {"workers", "min_workers", "max_workers", "estimate_s", "utilization"}
    nulls = {name for name in COLUMNS if trace.jobs.get_column(name).null_count()}
    assert nulls <= optional


@pytest.mark.parametrize(
    ("file", "format", "jobs", "integer_ids"),
    [
        ("traces/philly_jobs.parquet", "philly", 64_483, True),
        ("traces/itp_jobs.parquet", "itp", 57_957, True),
        ("traces/openb_pods_default.parquet", "openb", 8_152 - 897, False),
        ("traces/supercloud_slurm_sample.parquet", "slurm", 9_628, False),
        ("peers/lucid_sim_philly_week_240gpu.parquet", "lucid_sim", 2_088, True),
    ],
)
def test_shared_traces_are_recognised_and_read_whole(
    shared_data: Path, file: str, format: str, jobs: int, integer_ids: bool
) -> None:
    trace = read_trace(shared_data / file)
    assert (trace.format, trace.jobs.height) == (format, jobs)
    assert trace.integer_ids is integer_ids
    assert trace.name == Path(file).name
    assert_well_formed(trace)


def test_philly_keeps_jobs_that_are_alike_but_for_their_id(shared_data: Path) -> None:
    trace = read_trace(shared_data / "traces/philly_jobs.parquet")
    source = pl.read_parquet(shared_data / "traces/philly_jobs.parquet")
    assert source.drop("job_id").n_unique() < source.height
    assert column(trace, "job_id") == [str(job) for job in source.get_column("job_id")]
    assert trace.jobs.get_column("duration_s").equals(source.get_column("duration_s"))
    assert trace.jobs.get_column("gpu_milli").sum() == 1000 * source.get_column("num_gpus").sum()
    assert trace.jobs.get_column("queue").equals(source.get_column("vc").alias("queue"))
    span = (source["submit_time"][-1] - source["submit_time"][0]).total_seconds()
    assert trace.jobs.get_column("submit_s")[-1] == span
    assert trace.jobs.get_column("workers").null_count() == trace.jobs.height


def test_openb_shares_whole_gpus_and_cpu_pods(shared_data: Path) -> None:
    path = shared_data / "traces/openb_pods_default.parquet"
    trace = read_trace(path)
    source = pl.read_parquet(path).drop_nulls("scheduled_time").rename({"name": "job_id"})
    both = trace.jobs.join(source, on="job_id", suffix="_pod")
    assert both.height == source.height
    assert (both["duration_s"] == both["deletion_time"] - both["scheduled_time"]).all()
    asked = both["num_gpu"] * both["gpu_milli_pod"]
    assert (both["gpu_milli"] == asked).all()
    assert {0, 460, 1000, 8000} <= set(both["gpu_milli"])
    assert (both["queue"] == both["qos"]).all()
    assert set(both["workers"]) == {1}
    assert trace.notes == ("skipped as never scheduled: 897",)


def test_openb_gpu_spec_is_a_constraint(shared_data: Path, tmp_path: Path) -> None:
    variants = pl.read_parquet(shared_data / "traces/openb_pods_variants.parquet")
    path = tmp_path / "pods.parquet"
    variants.filter(pl.col("variant") == "gpuspec20").write_parquet(path)
    types = set(column(read_trace(path), "gpu_types"))
    assert {"", "T4", "V100M16|V100M32"} <= types


def test_lucid_sim_profile_and_estimates(shared_data: Path) -> None:
    path = shared_data / "peers/lucid_sim_philly_week_240gpu.parquet"
    jobs = read_trace(path).jobs
    source = pl.read_parquet(path)
    assert jobs["utilization"].to_list() == pytest.approx((source["gpu_util"] / 100).to_list())
    assert jobs["gpu_memory_mib"].to_list() == source["gmem"].ceil().to_list()
    assert jobs["estimate_s"].to_list() == source["estimate_s"].to_list()


def test_lucid_sim_order_column_is_the_row_order(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "peers/lucid_sim_philly_week_240gpu.parquet"
    mixed = tmp_path / "mixed.parquet"
    pl.read_parquet(path).sample(fraction=1, shuffle=True, seed=3).write_parquet(mixed)
    assert read_trace(mixed).jobs.equals(read_trace(path).jobs)


def test_row_order_breaks_ties(tmp_path: Path) -> None:
    rows = "z,1,5,7\ny,1,5,7\nx,2,3,7\na,1,3,7\n"
    path = write(tmp_path, "job_id,gpu_num,duration,submit_time\n" + rows)
    trace = read_trace(path)
    assert trace.format == "lucid_sim"
    assert column(trace, "job_id") == ["z", "y", "x", "a"]
    assert column(trace, "submit_s") == [0.0] * 4


def test_supercloud_gpus_and_repeated_ids(shared_data: Path) -> None:
    trace = read_trace(shared_data / "traces/supercloud_slurm_sample.parquet")
    source = pl.read_parquet(shared_data / "traces/supercloud_slurm_sample.parquet")
    gpus = source["tres_alloc"].str.extract(r"1002=(\d+)").cast(pl.Int64).sum()
    total = trace.jobs.select(pl.col("gpu_milli") * pl.col("workers").fill_null(1)).to_series()
    assert total.sum() == gpus * 1000
    assert any("#2" in str(job) for job in column(trace, "job_id"))
    assert "46" in trace.notes[0]


def test_sacct_output(tmp_path: Path) -> None:
    start = "2024-01-01T00:01:00|2024-01-02T01:02:03"
    rows = [
        f"10|ann|lab|gpu|2024-01-01T00:00:00|{start}|COMPLETED|1-01:01:03|2-00:00:00|"
        "billing=8,cpu=16,gres/gpu:a100=8,gres/gpu=8,mem=62.50G,node=2|"
        "cpu=16,gres/gpu:a100=8,mem=64G,node=2|2|16|4Gn",
        f"10.batch||||2024-01-01T00:00:00|{start}|COMPLETED|1-01:01:03||cpu=8||1|8|",
        "11|bob|lab|gpu|2024-01-01T00:00:05|Unknown|Unknown|PENDING|00:00:00|1:00||cpu=1|1|1|1G",
        f"12|bob|lab||2024-01-01T00:00:09|{start}|FAILED|05:00|UNLIMITED||"
        "cpu=3,mem=512M,gres/gpu:v100=2,gres/gpu:t4=1,node=2|2|3|1G",
        "13|bob|lab|gpu|2024-01-01T00:00:05|2024-01-01T00:00:06|Unknown|RUNNING|01:00|1:00||"
        "cpu=1|1|1|1G",
        "14_[3]|bob|lab|gpu|2024-01-01T00:00:05|None|2024-01-01T00:00:06|CANCELLED by 7|00:00:00|"
        "1:00||cpu=1|1|1|1G",
        "10|ann|lab|gpu|2024-01-03T00:00:00|2024-01-03T00:01:00|2024-01-03T00:01:30|NODE_FAIL|00:00:30|"
        "Partition_Limit|cpu=1,node=1|cpu=1|1|1|2G",
    ]
    trace = read_trace(write(tmp_path, SACCT_HEAD + "\n".join(rows) + "\n", "sacct.txt"))
    assert trace.format == "slurm"
    assert_well_formed(trace)
    assert column(trace, "job_id") == ["10", "12", "10#2"]
    assert column(trace, "duration_s") == [90_063.0, 300.0, 30.0]
    assert column(trace, "submit_s") == [0.0, 9.0, 172_800.0]
    assert column(trace, "workers") == [2, None, 1]  # 3 GPUs do not divide over 2 nodes
    assert column(trace, "gpu_milli") == [4000, 3000, 0]
    assert column(trace, "cpu_milli") == [8000, 3000, 1000]
    assert column(trace, "memory_mib") == [32_000, 512, 2048]
    assert column(trace, "gpu_types") == ["a100", "v100|t4", ""]
    assert column(trace, "queue") == ["gpu", "lab", "gpu"]
    assert column(trace, "owner") == ["ann", "bob", "ann"]
    assert column(trace, "estimate_s") == [172_800.0, None, None]
    assert [note.rsplit(": ")[1] for note in trace.notes] == ["2", "1", "1"]


def test_sacct_without_state_in_raw_units(tmp_path: Path) -> None:
    text = "JobIDRaw|Submit|ElapsedRaw|TimelimitRaw|ReqTRES\n5|1700000000|60|2|cpu=1,gres/gpu=4\n"
    trace = read_trace(write(tmp_path, text))
    assert (column(trace, "duration_s"), column(trace, "estimate_s")) == ([60.0], [120.0])
    assert column(trace, "gpu_milli") == [4000]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:00:05", 5.0),
        ("01:02:03", 3723.0),
        ("2-01:00:00", 176_400.0),
        ("10:30", 630.0),
        ("00:01.500", 1.5),
        ("UNLIMITED", None),
        ("", None),
    ],
)
def test_slurm_clock(text: str, seconds: float | None) -> None:
    assert clock_seconds(pl.Series([text])).to_list() == [seconds]


@pytest.mark.parametrize(
    ("text", "mib"),
    [("512M", 512), ("4G", 4096), ("62.50G", 64_000), ("1T", 1_048_576), ("2048K", 2), ("7", 7)],
)
def test_slurm_memory(text: str, mib: int) -> None:
    assert mebibytes(pl.Series([text, f"{text}n", "x"])).to_list() == [mib, mib, None]


def test_native_needs_four_columns_and_fills_the_rest(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, NATIVE + "b,100,5,0.25\na,90,1.5,2\n"))
    assert_well_formed(trace)
    assert trace.format == "native"
    assert trace.jobs.row(0, named=True) == {
        **{"job_id": "a", "submit_s": 0.0, "duration_s": 1.5, "workers": None},
        **{"gpu_milli": 2000, "cpu_milli": 0, "memory_mib": 0, "gpu_memory_mib": 0},
        **{"min_workers": None, "max_workers": None, "gpu_types": "", "queue": "default"},
        **{"owner": "", "priority": 0, "estimate_s": None, "utilization": None},
        **{"ps_workers": 0, "ps_cpu_milli": 0, "ps_memory_mib": 0, "workload": "", "after": ""},
    }
    assert trace.jobs.row(1, named=True)["gpu_milli"] == 250


def test_native_takes_every_column(tmp_path: Path) -> None:
    head = (
        "job_id,submit_s,duration_s,workers,gpu_milli,cpu_milli,memory_mib,gpu_memory_mib,"
        "min_workers,max_workers,gpu_types,queue,owner,priority,estimate_s,utilization,"
        "ps_workers,ps_cpu_milli,ps_memory_mib,workload,after\n"
    )
    row = "a,0,10,4,1000,8000,1024,512,2,8,A100|V100,q,me,-3,12.5,0.5,2,4000,2048,bert,b\n"
    other = "b,0,10,4,1000,0,0,0,,,,q,me,0,,,0,0,0,,\n"
    trace = read_trace(write(tmp_path, head + other + row))
    values = dict(zip(head.strip().split(","), row.strip().split(","), strict=True))
    found = {name: str(value) for name, value in trace.jobs.row(1, named=True).items()}
    for number in ("submit_s", "duration_s"):
        values[number] += ".0"
    assert found == values


def test_an_elastic_job_may_leave_one_bound_out(tmp_path: Path) -> None:
    text = (
        "job_id,submit_s,duration_s,gpu_milli,workers,max_workers\na,0,1,1000,2,4\nb,0,1,1000,2,\n"
    )
    trace = read_trace(write(tmp_path, text))
    assert column(trace, "min_workers") == [2, None]
    assert column(trace, "max_workers") == [4, None]


def test_every_container_gives_the_same_trace(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "job_id": ["a", "b,c", "d"],
            "submit_s": [3, 1, 2],
            "duration_s": [1.5, 2.0, 3.0],
            "gpus": [1, 2, 0],
            "queue": ["x", None, "y"],
        }
    )
    csv = frame.write_csv()
    frame.write_parquet(tmp_path / "a.parquet")
    frame.write_ndjson(tmp_path / "b.jsonl")
    frame.write_json(tmp_path / "c.json")
    write(tmp_path, csv, "d.csv")
    write(tmp_path, gzip.compress(csv.encode()), "e.csv.gz")
    frame.write_csv(tmp_path / "f.csv.zst", compression="zstd")
    frame.write_csv(tmp_path / "g.txt", separator=";")
    write(tmp_path, "\ufeff" + csv.replace("\n", "\r\n"), "h.csv")
    traces = [read_trace(path) for path in sorted(tmp_path.iterdir())]
    assert len(traces) == 8
    assert column(traces[0], "job_id") == ["b,c", "d", "a"]
    assert column(traces[0], "queue") == ["default", "y", "x"]
    for trace in traces[1:]:
        assert trace.jobs.equals(traces[0].jobs), trace.name


@pytest.mark.parametrize(
    ("ids", "integers"),
    [(["1", "2"], True), (["007", "8"], False), (["a", "2"], False), (["1", "1.0"], False)],
)
def test_integer_ids_are_noticed(tmp_path: Path, ids: list[str], integers: bool) -> None:
    rows = "".join(f"{job},0,1,1\n" for job in ids)
    trace = read_trace(write(tmp_path, NATIVE + rows))
    assert column(trace, "job_id") == ids
    assert trace.integer_ids is integers


def test_times_may_be_dates_and_large_integers_stay_exact(tmp_path: Path) -> None:
    head = "job_id,submit_time,duration_s,num_gpus\n"
    dates = head + "1,2017-10-03 07:01:22,5,1\n2,2017-10-03T07:01:20Z,5,1\n"
    assert column(read_trace(write(tmp_path, dates)), "submit_s") == [0.0, 2.0]
    zones = head + "1,2017-10-03T07:01:22+08:00,5,1\n2,2017-10-02T23:01:20+00:00,5,1\n"
    assert column(read_trace(write(tmp_path, zones)), "submit_s") == [0.0, 2.0]
    epoch = head + "1,1700000000123,5,1\n2,1700000000122,5,1\n"
    assert column(read_trace(write(tmp_path, epoch)), "submit_s") == [0.0, 1.0]


def test_estimates_come_from_the_named_column(tmp_path: Path) -> None:
    text = "job_id,submit_s,duration_s,gpus,guess\na,5,1,1,7\nb,4,1,1,\n"
    path = write(tmp_path, text)
    assert column(read_trace(path), "estimate_s") == [None, None]
    assert column(read_trace(path, estimates="guess"), "estimate_s") == [None, 7.0]
    with pytest.raises(TraceError, match=r"no column 'gess'.*submit_s, duration_s, gpus, guess$"):
        read_trace(path, estimates="gess")
    with pytest.raises(TraceError, match=r"row 1 \(job a\): job_id is not a number"):
        read_trace(path, estimates="job_id")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        (NATIVE, "has no jobs"),
        (b"PAR1 and then nothing", "cannot be read as Parquet"),
        (b"\x7fELF\0\0\0\0", "neither Parquet nor text"),
        ('{"job_id": 1\n', "cannot be read as JSON lines"),
        (NATIVE + "1,2,3,4,5\n", "a row has more fields than the header"),
        (NATIVE + "1,0,1,1\n2,0,-3,1\n", "row 2 (job 2): duration_s is negative (it is -3)"),
        (NATIVE + "1,0,1,1\n2,0,nan,1\n", "row 2 (job 2): duration_s is not finite"),
        (NATIVE + "1,0,1,1\n2,0,inf,1\n", "row 2 (job 2): duration_s is not finite"),
        (NATIVE + "1,0,1,1\n2,0,,1\n", "row 2 (job 2): duration_s is missing"),
        (
            NATIVE + "1,0,1,1\n2,0,soon,1\n",
            "row 2 (job 2): duration_s is not a number (it is soon",
        ),
        (NATIVE + "1,0,1,1\n2,-1,1,1\n", "row 2 (job 2): submit_s is negative"),
        (NATIVE + "1,0,1,1\n2,,1,1\n", "row 2 (job 2): submit_s is missing"),
        (NATIVE + "1,0,1,1\n2,0,1,-1\n", "row 2 (job 2): gpus is negative"),
        (NATIVE + "1,0,1,1.5\n", "row 1 (job 1): asks for 1.5 GPUs"),
        (NATIVE + "1,0,1,0.0001\n", "row 1 (job 1): gpus is less than a thousandth"),
        (NATIVE + "1,0,1,1\n,0,1,1\n", "row 2 (job None): job_id is missing"),
        (NATIVE + "7,0,1,1\n8,0,1,1\n7,0,2,1\n", "rows 1 and 3 are both job 7"),
        ("a,b\n1,2\n", "matches no format: native needs job_id"),
        ("job_id,submit_s,submit_s\n1,2,3\n", "column submit_s twice"),
        ("job_id,gpu_num,submit_time\n1,2,3\n", "nearest is lucid_sim, but it lacks duration"),
        (
            "job_id,submit_time,duration_s,num_gpus\n1,x,1,1\n",
            "row 1 (job 1): submit_time is not a time",
        ),
        ("job_id,submit_s,duration_s,gpus,workers\n1,0,1,1,0\n", "workers must be at least 1"),
        (
            "job_id,submit_s,duration_s,gpus,workers\n1,0,1,1,1.5\n",
            "workers must be a whole number",
        ),
        (
            "job_id,submit_s,duration_s,gpus,utilization\n1,0,1,1,7\n",
            "utilization must be at most 1",
        ),
        ("job_id,submit_s,duration_s,gpus,max_workers\n1,0,1,1,2\n", "but no workers"),
        (
            "job_id,submit_s,duration_s,gpus,workers,max_workers\n1,0,1,1,4,2\n",
            "min_workers ≤ workers ≤ max_workers",
        ),
        (
            "name,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\na,1,500,0,5,\n",
            "no job is left to simulate (skipped as never scheduled: 1)",
        ),
        (
            "name,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"
            "a,1,500,0,5,\nb,1,500,0,5,9\n",
            "row 2 (job b): deletion_time is before scheduled_time",
        ),
        (SACCT_HEAD + "1||||2024-01-01|x|x|COMPLETED|soon||||1|1|\n", "is not a duration"),
    ],
)
def test_bad_input_is_refused_in_one_line(tmp_path: Path, text: str | bytes, says: str) -> None:
    with pytest.raises(TraceError) as refused:
        read_trace(write(tmp_path, text))
    assert says in str(refused.value)
    assert "trace.csv" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_missing_files_and_unknown_formats(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="does not exist"):
        read_trace(tmp_path / "nothing.csv")
    with pytest.raises(TraceError, match="is a directory"):
        read_trace(tmp_path)
    path = write(tmp_path, NATIVE + "1,0,1,1\n")
    with pytest.raises(TraceError, match=f"'swf'; there are auto, {', '.join(FORMATS)}"):
        read_trace(path, "swf")
    with pytest.raises(TraceError, match="lacks submit_time, num_gpus: philly needs job_id"):
        read_trace(path, "philly")
    with pytest.raises(TraceError, match="cannot be read as Parquet"):
        read_trace(write(tmp_path, "text", "a.parquet"))


def test_reading_is_vectorised(tmp_path: Path) -> None:
    """A loop over rows in Python would take many seconds for 300,000 of them."""
    done = []
    for rows in (100, 300_000):
        count = pl.int_range(rows, eager=True)
        path = tmp_path / "many.parquet"
        pl.DataFrame(
            {"job_id": count, "submit_s": count, "duration_s": count, "gpus": 1}
        ).write_parquet(path)
        assert read_trace(path).jobs.height == rows
        done.append(opcodes(partial(read_trace, path)))
    assert done[1] < done[0] + 1000
