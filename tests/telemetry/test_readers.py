"""Readers: layouts, the rules for input that is not in order, and the public data sets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.model.errors import TelemetryError
from presage.telemetry.readers import AI4DL_FEATURES, phase_features, read_telemetry
from presage.telemetry.rows import Row, append
from presage.telemetry.series import Series
from tests.counting import opcodes

NAN = float("nan")


def wrote(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_wide_csv(tmp_path: Path) -> None:
    text = "pod,time,cpu_cores,note,rss_mib\na,0,1.5,x,10\nb,0,NA,y,20\na,15,2.5,,NaN\n"
    one, two = read_telemetry(wrote(tmp_path / "t.csv", text))
    assert (one.pod, two.pod) == ("a", "b")
    assert one.features == ("cpu_cores", "rss_mib")
    assert one.units == ("cores", "MiB")
    assert one.resources == {"cpu": ("cpu_cores",), "memory": ("rss_mib",)}
    assert one.times.tolist() == [0, 15]
    np.testing.assert_array_equal(one.values, [[1.5, 10], [2.5, NAN]])
    np.testing.assert_array_equal(two.values, [[NAN, 20]])
    assert one.rows is two.rows is None


def test_a_header_that_is_one_field_short_is_rs(tmp_path: Path) -> None:
    text = 'timestamp,"pod.id",cpu.usage.cores\n1,100,exec1,0.5\n2,110,exec1,0.7\n'
    (pod,) = read_telemetry(wrote(tmp_path / "r.csv", text))
    assert (pod.pod, pod.features) == ("exec1", ("cpu.usage.cores",))
    assert pod.times.tolist() == [100, 110]


def test_long_csv_and_parquet(tmp_path: Path) -> None:
    text = (
        "pod,ts,metric,value\n"
        "a,0,cpu,1\na,0,memory,10\na,5,cpu,2\nb,0,memory,30\na,0,cpu,3\nb,1,memory,NA\n"
    )
    csv = wrote(tmp_path / "long.csv", text)
    pl.read_csv(csv, null_values="NA").write_parquet(tmp_path / "long.parquet")
    for file in (csv, tmp_path / "long.parquet"):
        a, b = read_telemetry(file)
        assert a.features == b.features == ("cpu", "memory")
        np.testing.assert_array_equal(a.values, [[2, 10], [2, NAN]])
        np.testing.assert_array_equal(b.values, [[NAN, 30], [NAN, NAN]])
        assert a.by_input_row(["first", "second"]) == ["first", "first", "second", "first"]
        assert b.by_input_row(["first", "second"]) == ["first", "second"]


def test_a_file_without_pods_is_one_pod(tmp_path: Path) -> None:
    (pod,) = read_telemetry(wrote(tmp_path / "train-7.csv", "t_s,cpu_cores\n0,1\n1,2\n"))
    assert pod.pod == "train-7"


def test_a_column_without_a_number_is_left_out(tmp_path: Path) -> None:
    table = pl.DataFrame({"t_s": [0.0, 1], "cpu_cores": [1.0, 2], "gpu_util_pct": [NAN, NAN]})
    table.write_parquet(tmp_path / "t.parquet")
    table.write_csv(tmp_path / "t.csv")
    for file in ("t.parquet", "t.csv"):
        (pod,) = read_telemetry(tmp_path / file)
        assert pod.features == ("cpu_cores",)


def test_several_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        wrote(tmp_path / f"{name}.csv", "pod.id,time,cpu\nexec2,0,1\n")
    wrote(tmp_path / "readme.txt", "not telemetry")
    for source in (tmp_path, tmp_path / "*.csv"):
        assert [pod.pod for pod in read_telemetry(source)] == ["a/exec2", "b/exec2"]
    assert [pod.pod for pod in read_telemetry(tmp_path / "[a]*.csv")] == ["exec2"]
    (tmp_path / "more").mkdir()
    wrote(tmp_path / "more" / "a.csv", "pod.id,time,cpu\nexec2,0,1\n")
    names = [pod.pod for pod in read_telemetry(tmp_path / "**" / "a.csv")]
    assert names == ["a.csv/exec2", "more/a.csv/exec2"]


def test_what_guardians_write(tmp_path: Path) -> None:
    """Each worker is a pod, and counters are rates; torn lines are left out."""
    for k in range(4):
        append(
            tmp_path / "1.jsonl",
            Row(10.0 + 5 * k, "worker-0", 3.0 * k, 0.6, 100.0 + k, 1, 2, 50 * k * k, 0),
            Row(11.0 + 5 * k, "worker-1", rss_mib=7.0, gpu_util_pct=50.0, gpu_memory_mib=9.0),
        )
    with (tmp_path / "1.jsonl").open("ab") as torn:
        torn.write(b'{"at": 30.0, "wor')
    one, two = read_telemetry(tmp_path / "1.jsonl")
    assert (one.pod, two.pod) == ("worker-0", "worker-1")
    assert one.times.tolist() == [10.0, 15.0, 20.0, 25.0]
    assert one.features == (
        *("cpu_cores", "rss_mib", "processes", "threads", "read_bytes_s", "write_bytes_s"),
    )
    assert one.units[:2] == ("cores", "MiB")
    assert set(one.resources) == {"cpu", "memory", "disk"}
    assert one.column("read_bytes_s").tolist() == [10.0, 10.0, 30.0, 50.0]
    assert one.column("memory").tolist() == [100.0, 101.0, 102.0, 103.0]
    assert set(two.resources) == {"memory", "gpu", "gpu_memory"}
    append(tmp_path / "2.jsonl", Row(99.0, "worker-0", cpu_cores=1.0))
    names = [pod.pod for pod in read_telemetry(tmp_path)]  # the attempts of a job
    assert names == ["1/worker-0", "1/worker-1", "2/worker-0"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no sample; a line is a JSON object"),
        ("nothing\n", "has no sample"),
        (
            '{"at": 1, "worker": "w"}\n{"at": 2, "worker": "w", "rss_mib": "x"}\n',
            "line 2: rss_mib",
        ),
        ('{"time": 1, "pod": "a", "cpu": 2}\n', "line 1: a row needs the time `at`"),
    ],
)
def test_json_lines_that_are_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(TelemetryError, match=why):
        read_telemetry(wrote(tmp_path / "t.jsonl", text))


START = datetime(2024, 5, 31, 12, tzinfo=UTC)
MOMENTS = [START + timedelta(seconds=15 * i) for i in range(3)]


@pytest.mark.parametrize(
    "column",
    [
        pl.Series("time", [m.timestamp() for m in MOMENTS]),
        pl.Series("timestamp", [int(m.timestamp() * 1e3) for m in MOMENTS]),
        pl.Series("timestamp", [int(m.timestamp()) * 10**6 for m in MOMENTS]),
        pl.Series("ts", [int(m.timestamp()) * 10**9 for m in MOMENTS]),
        pl.Series("timestamp_ms", [int(m.timestamp() * 1e3) for m in MOMENTS]),
        pl.Series("time", MOMENTS),
        pl.Series("Time", [m.isoformat() for m in MOMENTS]),
        pl.Series("Time", [m.isoformat().replace("+00:00", "Z") for m in MOMENTS]),
        pl.Series("Time", [f"{m:%Y-%m-%d %H:%M:%S}" for m in MOMENTS]),
        pl.Series("time", [f"{m + timedelta(hours=2):%Y-%m-%dT%H:%M:%S}+02:00" for m in MOMENTS]),
        pl.Series("time", [str(m.timestamp()) for m in MOMENTS]),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_times_of_many_kinds(tmp_path: Path, column: pl.Series, kind: str) -> None:
    file = tmp_path / f"t.{kind}"
    table = pl.DataFrame([column, pl.Series("cpu", [1.0, 2.0, 3.0])])
    table.write_csv(file) if kind == "csv" else table.write_parquet(file)
    (pod,) = read_telemetry(file)
    assert pod.times.tolist() == [moment.timestamp() for moment in MOMENTS]


def test_durations_since_the_start(tmp_path: Path) -> None:
    column = pl.Series("time", [timedelta(0), timedelta(milliseconds=1500)])
    pl.DataFrame([column, pl.Series("cpu", [1, 2])]).write_parquet(tmp_path / "t.parquet")
    (pod,) = read_telemetry(tmp_path / "t.parquet")
    assert pod.times.tolist() == [0, 1.5]


def test_time_backwards_and_twice(tmp_path: Path) -> None:
    text = "pod,time,cpu,memory\na,30,3,1\na,0,1,1\na,30,5,NA\na,15,2,1\na,30,NA,NA\n"
    (pod,) = read_telemetry(wrote(tmp_path / "t.csv", text))
    assert pod.times.tolist() == [0, 15, 30]
    np.testing.assert_array_equal(pod.values, [[1, 1], [2, 1], [4, 1]])
    assert pod.by_input_row([10, 11, 12]) == [12, 10, 12, 11, 12]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=40))
def test_every_input_row_finds_its_sample(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int]]
) -> None:
    file = tmp_path_factory.getbasetemp() / "rows.parquet"
    ids, times = zip(*rows, strict=True)
    values = [100.0 * pod + at for pod, at in rows]
    pl.DataFrame({"id": ids, "time": times, "cpu": values}).write_parquet(file)
    found = read_telemetry(file)
    assert [pod.pod for pod in found] == list(dict.fromkeys(map(str, ids)))
    for pod in found:
        own = [(at, value) for name, at, value in zip(ids, times, values, strict=True)
               if str(name) == pod.pod]  # fmt: skip
        assert pod.by_input_row(pod.times) == [at for at, _ in own]
        assert pod.by_input_row(pod.values[:, 0]) == [value for _, value in own]


@pytest.mark.parametrize(
    ("name", "values", "feature", "unit"),
    [
        ("genai_pod_gpu_duty_cycle", [0.0, 40.0], "gpu", "%"),
        ("genai_pod_gpu_memory_used_bytes", [2e10, 3e10], "gpu_memory", "bytes"),
        ("genai_pod_memory_util", [0.1, 0.9], "memory", "share"),
        ("heldout_gpu_util", [0.0, 40.0], "gpu", ""),
        ("gpu-mem", [2e10, 3e10], "gpu_memory", ""),
        ("part-0", [2e10, 3e10], "gpu_memory", ""),
        ("part-0", [0.0, 40.0], "gpu", ""),
        ("part-0", [0.1, 0.9], "memory", ""),
        ("part-0", [0.0, 0.0], "value", ""),
    ],
)
def test_one_value_is_named_by_its_file(
    tmp_path: Path, name: str, values: list[float], feature: str, unit: str
) -> None:
    table = pl.DataFrame({"pod": [0, 0], "value": values, "timestamp_anon": [60, 120]})
    table.write_parquet(tmp_path / f"{name}.parquet")
    (pod,) = read_telemetry(tmp_path / f"{name}.parquet")
    assert (pod.features, pod.units) == ((feature,), (unit,))
    assert pod.resources == ({} if feature == "value" else {feature: (feature,)})
    assert phase_features([pod]) == (feature,)


def test_features_for_phases() -> None:
    def pod(*features: str, **resources: tuple[str, ...]) -> Series:
        return Series("p", np.array([0.0]), np.zeros((1, len(features))), features, (), resources)

    ai4dl = pod("cpu.num.cores", *AI4DL_FEATURES, cpu=("cpu.usage.cores",))
    assert phase_features([ai4dl]) == AI4DL_FEATURES
    other = pod("x", "y", memory=("y",), cpu=("x",))
    assert phase_features([other]) == ("cpu", "memory")
    assert phase_features([other, ai4dl]) == ("cpu",)
    assert phase_features([pod("x", "z"), pod("z")]) == ("z",)
    with pytest.raises(TelemetryError, match="no feature in common"):
        phase_features([pod("x"), pod("y")])
    with pytest.raises(TelemetryError, match="no pods"):
        phase_features([])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("time,cpu\n", "is empty"),
        ("when,cpu\n0,1\n", "no column of times; call it timestamp or time"),
        ("time,pod\n0,a\n", "no column of numbers"),
        ("time,cpu\n0,NA\n", "no column of numbers"),
        ("time,cpu\n0,1\nsoon,2\n", "row 2, time: 'soon' is not a time; write seconds"),
        ("time,cpu\n2024-05-31T12:00:00Z,1\nsoon,2\n", "row 2, time: 'soon' is not a time"),
        ("time,cpu\n0,1\n,2\n", "row 2, time: is not a time"),
        ("time,cpu\n0,1\ninf,2\n", "row 2, time: 'inf' is not a time"),
        ("time,pod,cpu\n0,a,1\n1,,2\n", "row 2, pod: is empty"),
        ("time,cpu\n0,1\n1,2\n2,x\n", "row 3, cpu: 'x' is not a number"),
        ("time,metric,value\n0,cpu,x\n", "value holds no numbers"),
        ("time,cpu,cpu\n0,1,1\n", "two columns 'cpu'"),
        ("time,cpu\n0,1\n1,2,3,4\n", "cannot be read"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TelemetryError, match=message) as caught:
        read_telemetry(wrote(tmp_path / "bad.csv", text))
    assert str(caught.value).count("\n") == 0
    assert str(tmp_path / "bad.csv") in str(caught.value)


def test_bad_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TelemetryError, match="no such file"):
        read_telemetry(tmp_path / "none.csv")
    with pytest.raises(TelemetryError, match="no such file"):
        read_telemetry(tmp_path / "a**b" / "*.csv")
    with pytest.raises(TelemetryError, match=r"no .csv, .parquet or .jsonl"):
        read_telemetry(tmp_path)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(TelemetryError, match="cannot be read"):
        read_telemetry(tmp_path / "broken.parquet")
    (tmp_path / "binary.csv").write_bytes(b"\x1f\x8b\xff\xfe\n\x00")
    with pytest.raises(TelemetryError, match="neither CSV in UTF-8 nor"):
        read_telemetry(tmp_path / "binary.csv")
    (tmp_path / "more" / "folder.jsonl").mkdir(parents=True)
    with pytest.raises(TelemetryError, match="cannot be read: Is a directory"):
        read_telemetry(tmp_path / "more")


def test_ai4dl(shared_data: Path) -> None:
    folder = shared_data / "telemetry"
    dlaas = read_telemetry(folder / "ai4dl_dlaas.csv")
    (vr,) = read_telemetry(folder / "ai4dl_vr.csv")
    assert [pod.pod for pod in dlaas] == ["exec1", "exec2", "exec3", "exec4"]
    assert sum(map(len, dlaas)) == 204
    assert (vr.pod, len(vr)) == ("exec2", 2286)
    assert phase_features([*dlaas, vr]) == AI4DL_FEATURES
    assert vr.matrix(["cpu", "memory"])[0].tolist() == [1.802, 20566016]
    both = read_telemetry(folder / "ai4dl_*.csv")
    assert {"ai4dl_dlaas/exec2", "ai4dl_vr/exec2"} <= {pod.pod for pod in both}


def test_rows_are_not_looped_over_in_python(tmp_path: Path) -> None:
    """The 598,045 rows of scout take a second."""
    done = []
    for rows in (100, 10_000):
        lines = (f"{i % 20},{i // 20 * 5},{i % 3}\n" for i in range(rows))
        path = wrote(tmp_path / "t.csv", "pod,timestamp,cpu\n" + "".join(lines))
        assert sum(map(len, read_telemetry(path))) == rows
        done.append(opcodes(partial(read_telemetry, path)))
    assert done[1] < 2 * done[0]


def test_scout(shared_data: Path) -> None:
    pods = read_telemetry(shared_data / "telemetry" / "scout_runs_5s.parquet")
    assert sum(map(len, pods)) == 598_045
    assert phase_features(pods) == ("cpu", "memory", "net_tx", "net_rx", "disk")
    first = pods[0]
    table = pl.scan_parquet(shared_data / "telemetry" / "scout_runs_5s.parquet")
    rows = table.filter(pl.col("run") == first.pod).sort("t_s").collect()
    expected = rows["cpu_usr_pct"].cast(pl.Float64) + rows["cpu_sys_pct"].cast(pl.Float64)
    np.testing.assert_array_equal(first.column("cpu"), expected.to_numpy())
    np.testing.assert_array_equal(first.column("memory"), rows["mem_anon_kb"].to_numpy())


def test_genai(shared_data: Path) -> None:
    pods = read_telemetry(shared_data / "telemetry" / "genai_*.parquet")
    kinds = {pod.pod.split("/")[0]: tuple(pod.resources) for pod in pods}
    assert kinds == {
        "genai_pod_gpu_duty_cycle": ("gpu",),
        "genai_pod_gpu_memory_used_bytes": ("gpu_memory",),
        "genai_pod_memory_util": ("memory",),
    }
    (folded,) = (pod for pod in pods if pod.rows is not None)  # two samples of one moment
    assert folded.rows is not None
    assert len(folded.rows) == len(folded) + 1
