"""The distributed job and what measures it: servers train as one process would, links are as fast
as they should be, and a collector that was killed goes on. Those with links need root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import bursts_collect, bursts_ratio
from benchmarks._burst_runs import training_job
from benchmarks._links import Links
from presage.foresee.bursts.settings import Setting
from presage.model.errors import UserError
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")

TASK = """
import json, os, sys, traceback
import torch
import torch.distributed as dist
from benchmarks._burst_runs import training_job
job = training_job()

def task(rank, roles, mode, out):
    torch.set_num_threads(1)
    work = job.Workload("mlp", 4, "momentum", lr=0.01)
    training = job.Training(work)
    start = training.flat().clone()
    if len(roles) > 1:
        meeting = f"file://{out}/meeting"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=len(roles))
    count = []
    job.run_task(work, rank, roles, asynchronous=mode == "async", steps=5,
                 done=lambda: count.append(1), training=training)
    assert len(count) == 5, count
    torch.save((start, training.flat()), f"{out}/{rank}.pt")

for roles, mode, out in json.loads(sys.argv[1]):
    children = []
    for rank in range(len(roles)):
        pid = os.fork()
        if not pid:
            try:
                task(rank, roles, mode, out)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0] * len(codes), codes
"""


def test_servers_train_as_one_process_does(tmp_path: Path) -> None:
    """All workers have the same inputs here, so the mean of their slopes is that of one, and the
    optimizers work on flat shards, one by one the same. Asynchronous servers take more steps."""
    import torch

    cases = {
        "alone": (["worker"], "sync"),
        "reduced": (["worker", "worker"], "sync"),
        "served": (["worker", "worker", "ps", "ps"], "sync"),
        "async": (["worker", "worker", "ps"], "async"),
    }
    for name in cases:
        (tmp_path / name).mkdir()
    asked = [(*case, str(tmp_path / name)) for name, case in cases.items()]
    subprocess.run(
        [sys.executable, "-c", TASK, json.dumps(asked)], cwd=ROOT, check=True, timeout=PATIENCE_S
    )
    start, alone = torch.load(tmp_path / "alone" / "0.pt")
    assert float((alone - start).abs().max()) > 1e-5
    for name in ("reduced", "served"):
        for rank in (0, 1):
            ours = torch.load(tmp_path / name / f"{rank}.pt")[1]
            torch.testing.assert_close(ours, alone, atol=1e-6, rtol=1e-5)
    loose = torch.load(tmp_path / "async" / "0.pt")[1]
    assert float((loose - start).abs().max()) > 1e-5


def test_shards_cover_all_parameters_once() -> None:
    cuts = training_job().cuts
    for total, parts in ((10, 3), (2, 4), (7, 1)):
        shards = cuts(total, parts)
        assert len(shards) == parts
        assert [at for cut in shards for at in range(total)[cut]] == list(range(total))


@needs_root
def test_a_link_carries_what_it_should() -> None:
    """3 MB over 20 Mbit/s take 1.2 s, whatever the machine is busy with; less a bucket."""
    with Links(2, 2e7) as links:
        assert socket_seconds(links, 3_000_000) > 1.0
        names = {path.name for path in Path("/run/netns").iterdir()}
        assert sum(str(os.getpid()) in name for name in names) == 3
    assert not any(str(os.getpid()) in path.name for path in Path("/run/netns").iterdir())


def socket_seconds(links: Links, size: int) -> float:
    """How long it takes to send so much from the second task to the first."""
    code = (
        "import socket, sys; s = socket.create_connection((sys.argv[1], 7001), timeout=400);"
        f"s.sendall(b'x' * {size}); s.shutdown(1); s.recv(1)"
    )
    receive = (
        "import socket; s = socket.create_server(('', 7001)); print('on', flush=True);"
        "c, _ = s.accept()\nwhile c.recv(1 << 16): pass\nc.sendall(b'.')"
    )
    spaces = [f"{links.name}-{task}" for task in (0, 1)]
    server = subprocess.Popen(
        ["ip", "netns", "exec", spaces[0], sys.executable, "-c", receive], stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    server.stdout.readline()
    start = time.monotonic()
    words = ["ip", "netns", "exec", spaces[1], sys.executable, "-c", code, links.address(0)]
    subprocess.run(words, check=True, timeout=PATIENCE_S)
    spent = time.monotonic() - start
    server.communicate()
    return spent


def test_links_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match="need root and iproute2"), Links(1, None):
        pass


def test_the_list_is_large_enough() -> None:
    items = bursts_collect.workloads()
    assert len({json.dumps(item, sort_keys=True) for item in items}) == len(items) >= 150
    assert len(bursts_collect.SETTINGS.split(",")) >= 6
    assert len(bursts_collect.spread(items, 20)) == 20


def test_what_was_run_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    items = bursts_collect.workloads()[:11]
    setting = Setting.parse("W2/none")
    runs = list(bursts_collect.planned(items, [setting], 2))
    assert len(runs) == 11 + 2  # the first and the eleventh once more
    bursts_collect.add_line(path, runs[0] | {"labels": {}})
    bursts_collect.add_line(path, runs[1] | {"failed": "x"})
    with path.open("a") as file:
        file.write('{"workload": {"mod')  # killed here
    bursts_collect.add_line(path, runs[2] | {"labels": {}})
    known = bursts_collect.known_runs(path, again=False)
    assert known == {bursts_collect.key_of(run) for run in runs[:3]}
    again = bursts_collect.known_runs(path, again=True)
    assert again == {bursts_collect.key_of(run) for run in (runs[0], runs[2])}


def test_parts_are_compared_in_pairs() -> None:
    """By hand: the tuned job is at step 29 after 30 s and makes 1.9 a second from then on, which
    is as if it had begun 14.74 s late; `never` is 4 s late and makes 1: 10.74 / (1 - 1 / 1.9)."""
    told = {"steps": 40, "took_s": 36.0, "speed": 1.9, "advisor": []}
    lines = [
        {"part": "1/1", "speed": 1.0},
        {"part": "2/2", "speed": 2.0},
        {"part": "tuned", **told, "reports": [(5.0, 1.0), (20.0, 10.0), (30.0, 29.0)]},
        {"part": "2/2", "speed": 1.8},
        {"part": "never", **told, "speed": 1.0, "reports": [(5.0, 1.0), (30.0, 26.0)]},
    ]
    found = bursts_ratio.summary(lines)
    assert (found["best"], found["fixed"]["2/2"]) == ("2/2", 1.9)
    (tuned,) = found["tuned"]
    assert (tuned["over best"], tuned["longest pause s"]) == (1.0, 15.0)
    assert tuned["pays after steps"] == 23


def test_a_wrong_list_is_named(tmp_path: Path) -> None:
    path = tmp_path / "list.jsonl"
    path.write_text('{"model": "mlp", "batch": 2}\n{"model": "mlp"}\n')
    with pytest.raises(UserError, match="line 2: give model, batch"):
        bursts_collect.read_workloads(path)


@needs_root
@pytest.mark.slow
@pytest.mark.soak
def test_a_run_is_measured_and_kept(tmp_path: Path) -> None:
    """The whole of it on a small model: two workers and a server, forked into namespaces."""
    work = tmp_path / "list.jsonl"
    work.write_text('{"model": "mlp", "batch": 16}\n')
    words = [sys.executable, "-m", "benchmarks.bursts_collect", "--out", str(tmp_path / "out")]
    words += ["--workloads", str(work), "--settings", "P1W2/100mbit", "--repeats", "1"]
    for expected in ("1 runs, 0 of them", "1 runs, 1 of them"):
        done = subprocess.run(
            words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout
    (run,) = map(json.loads, (tmp_path / "out" / "runs.jsonl").read_text().splitlines())
    assert set(run["tasks"]) == {"worker-0", "worker-1", "ps-2"}
    assert 0 < run["labels"]["sent_burst_mib_s"] < 1.15 * 100 / 8 / 1.048576
    assert run["steps"] >= 2
