"""`presage diagnose` of what is no server of ours: a real Prometheus, and files."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from presage.telemetry.prometheus import Prometheus
from presage.telemetry.rows import Row, append
from tests.cli.telemetry import refused, run
from tests.real_prometheus import prometheus_with

EVERY_S = 30
SAMPLES = 240
MIB = 1 << 20


def recorded(end: float) -> Iterator[str]:
    """Two hours of four pods: one is well, one leaks, one fills its GPU, one holds its GPU and
    does nothing with it."""
    random = np.random.default_rng(0)
    noise = random.uniform(-9, 9, SAMPLES)
    times = [end - EVERY_S * (SAMPLES - k) for k in range(SAMPLES)]
    steady = 500 + noise
    grows = 500 + 2.0 * np.arange(SAMPLES) + noise
    memory = {"well": steady, "leaks": grows, "fills": steady, "idle": steady}
    on_gpu = {"fills": 10_000 + 60.0 * np.arange(SAMPLES) + noise, "idle": 3_000 + noise}
    busy = {"fills": 70 + noise, "idle": 0 * noise}
    yield "# TYPE container_cpu_usage_seconds counter\n"
    for pod in memory:
        labels = f'namespace="train",pod="{pod}",container="main"'
        for k, at in enumerate(times):
            yield f"container_cpu_usage_seconds_total{{{labels}}} {0.8 * EVERY_S * k} {at}\n"
    for metric, scale, levels in (
        ("container_memory_working_set_bytes", MIB, memory),
        ("DCGM_FI_DEV_FB_USED", 1, on_gpu),
        ("DCGM_FI_DEV_GPU_UTIL", 1, busy),
    ):
        yield f"# TYPE {metric} gauge\n"
        for pod, values in levels.items():
            labels = f'namespace="train",pod="{pod}",container="main"'
            for at, value in zip(times, values, strict=True):
                yield f"{metric}{{{labels}}} {value * scale} {at}\n"
    yield "# EOF\n"


@pytest.fixture(scope="module")
def server(
    program: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    with prometheus_with(recorded(time.time()), "DCGM_FI_DEV_FB_USED", folder, program) as found:
        yield found


@pytest.mark.engine
def test_what_a_real_prometheus_remembers(server: Prometheus) -> None:
    words = ("--prometheus", server.url, "--select", 'namespace="train"', "--since", "2h")
    limits = ("--memory", "1200Mi", "--gpu-memory", "40Gi", "--every", "30s")
    done = run("diagnose", *words, *limits, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["series"] == 4
    found = {(one["subject"], one["kind"]): one for one in told["troubles"]}
    assert set(found) == {
        ("pod train/leaks", "leak"),
        ("pod train/fills", "gpu_memory"),
        ("pod train/idle", "gpu_idle"),
    }
    leak = found["pod train/leaks", "leak"]
    assert leak["to_the_end"]
    assert leak["probability"] >= 0.95
    assert leak["evidence"][0]["series"] == "rss_mib"
    assert "will pass the 1200 MiB limit at" in leak["text"]
    done = run("diagnose", *words, *limits)
    assert "leak (" in done.stdout
    assert "pod train/well" not in done.stdout
    # Without a limit, nothing is full.
    done = run("diagnose", *words, "--every", "30s", "--json")
    assert {one["kind"] for one in json.loads(done.stdout)["troubles"]} == {"gpu_idle"}


@pytest.mark.engine
def test_nothing_stands_out_of_a_pod_that_is_well(server: Prometheus) -> None:
    words = ("--prometheus", server.url, "--select", 'pod="well"', "--since", "2h")
    done = run("diagnose", *words, "--memory", "1200Mi", "--every", "30s")
    assert (done.exit_code, done.stdout) == (0, "nothing stands out (1 series)\n")


@pytest.mark.engine
def test_what_is_wrong_with_the_question_is_one_line(server: Prometheus) -> None:
    words = ("diagnose", "--prometheus", server.url)
    assert "has no such samples" in refused(run(*words, "--select", 'namespace="nobody"'))
    assert "--memory: " in refused(run(*words, "--memory", "much"))
    assert "one of the two" in refused(run("diagnose", "pods.csv", *words[1:]))


def test_a_file_of_any_telemetry(tmp_path: Path) -> None:
    file = tmp_path / "pods.csv"
    lines = ["pod,timestamp,cpu_cores,memory_bytes"]
    for k in range(200):
        lines.append(f"well,{15 * k},0.8,{(500 + k % 7) * MIB}")
        lines.append(f"leaks,{15 * k},0.8,{(500 + 2 * k + k % 7) * MIB}")
    file.write_text("\n".join(lines))
    done = run("diagnose", file, "--memory", "1200Mi", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    (leak,) = told["troubles"]
    assert (told["series"], leak["kind"], leak["subject"]) == (2, "leak", "pod leaks")
    unlimited = run("diagnose", file)
    assert "nothing stands out" in unlimited.stdout
    assert "--memory" in unlimited.stderr


def test_a_file_of_a_guardian(tmp_path: Path) -> None:
    file = tmp_path / "job-1.jsonl"
    for k in range(60):
        for worker in ("worker-0", "worker-1"):
            held = 2 if worker == "worker-1" and k > 30 else 0
            step = float(k if k <= 30 else 30)
            append(file, Row(1e9 + k, worker, 0.5 * k, 0.5, 300.0, step=step, stopped=held))
    done = run("diagnose", file, "--json")
    assert done.exit_code == 0, done.output
    (stuck,) = json.loads(done.stdout)["troubles"]
    assert (stuck["kind"], stuck["subject"]) == ("stuck", "worker job-1/worker-1")
    assert stuck["to_the_end"]


def test_files_that_are_none(tmp_path: Path) -> None:
    assert "name a job, a node, cluster, a file" in refused(run("diagnose"))
    gone = refused(run("diagnose", tmp_path / "gone.csv"))
    assert "gone.csv" in gone
    (tmp_path / "empty.jsonl").write_text("")
    assert "empty.jsonl" in refused(run("diagnose", tmp_path / "empty.jsonl"))
    (tmp_path / "other.csv").write_text("pod,time,queue\na,0,1\na,15,2\n")
    assert "none of the metrics is one of them: queue" in refused(
        run("diagnose", tmp_path / "other.csv")
    )
    assert "belongs to --prometheus" in refused(run("diagnose", "p.csv", "--select", "x"))
