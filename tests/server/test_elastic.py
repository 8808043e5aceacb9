"""Jobs that change their number of workers while they train, on a real server with torchrun."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.server.kit import Server, eventually

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "elastic"
MANIFEST = """
name: surface
command: python train.py --steps 100000 --pace 0.02
launcher: torchrun
workers: 1..4
resources: {gpus: 1}
checkpoint: {every: 10m}
env: {OMP_NUM_THREADS: 1}
"""


class Training:
    """The example under way on a server with four GPUs, two of which another job has."""

    def __init__(self, server: Server, folder: Path, manifest: str = MANIFEST) -> None:
        self.server = server
        self.other = server.submit("sleep 600", resources={"gpus": 2})
        server.wait(self.other, "PROCESSING")
        shutil.copytree(EXAMPLE, folder)
        (folder / "presage.yaml").write_text(manifest)
        with server.client() as client:
            self.id: str = client.submit(folder / "presage.yaml").id
        self.reaches(2)

    def curve(self) -> list[dict[str, Any]]:
        """Every step that was done, in the order it was done."""
        file = self.server.data / "jobs" / self.id / "results" / "curve.jsonl"
        if not file.exists():
            return []
        return [json.loads(line) for line in file.read_text().splitlines(True) if "\n" in line]

    def reaches(self, workers: int, steps: int = 10) -> None:
        """Wait until it has done some steps with so many workers, and the server says so."""

        def there() -> bool:
            latest = self.curve()[-steps:]
            return len(latest) == steps and all(p["workers"] == workers for p in latest)

        try:
            eventually(there)
            eventually(lambda: self.server.job(self.id)["workers"] == workers)
        except AssertionError as error:
            log = self.server.logs(self.id)
            raise AssertionError(f"{error}\n{self.server.job(self.id)}\n{log[-3000:]}") from None

    def free_the_rest(self) -> None:
        """The other job gives back its GPUs."""
        self.server.tell(self.other, "stop")
        self.server.wait(self.other)

    def went_through(self, *sizes: int) -> None:
        """It had these numbers of workers, and nothing was lost."""
        curve = self.curve()
        assert [size for size, _ in groupby(p["workers"] for p in curve)] == list(sizes)
        assert [p["step"] for p in curve] == list(range(1, len(curve) + 1))
        changes = [(a, b) for a, b in pairwise(curve) if a["workers"] != b["workers"]]
        print("stood still for", *(f"{b['at'] - a['at']:.1f} s" for a, b in changes))
        losses = losses_of_one_worker(len(curve))
        assert [p["loss"] for p in curve] == pytest.approx(losses, rel=1e-4, abs=1e-6)
        status = self.server.job(self.id)
        assert (status["status"], status["attempt"]) == ("PROCESSING", 1)


def losses_of_one_worker(steps: int) -> list[float]:
    """The losses of the same training with one worker that nobody disturbs."""
    spec = importlib.util.spec_from_file_location("elastic_example", EXAMPLE / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    training = module.Training(0.05)
    return [training.one_step(0, 1) for _ in range(steps)]


@pytest.mark.slow
@pytest.mark.engine
def test_by_its_owner(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(nodes="1x4").start()
    training = Training(server, tmp_path / "surface")
    training.free_the_rest()
    done = server.presage("scale", training.id, "3", "--yes", "--json")
    assert (done.code, done.json["workers"]) == (0, 3), done.err
    training.reaches(3)
    assert server.presage("scale", training.id, "1", "--yes").code == 0
    training.reaches(1)
    training.went_through(2, 3, 1)


@pytest.mark.soak
def test_by_plan(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(nodes="1x4").start()
    plan = "elastic: {at epoch 4: 4 workers, at epoch 6: 1 workers}\n"
    training = Training(server, tmp_path / "surface", MANIFEST + plan)
    training.free_the_rest()
    training.reaches(1)
    training.went_through(2, 4, 1)


@pytest.mark.soak
def test_by_the_system(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve("--policy", "elastic", nodes="1x4").start()
    training = Training(server, tmp_path / "surface")
    training.free_the_rest()  # an idle cluster
    training.reaches(4)
    large = server.submit("sleep 600", resources={"gpus": 3})
    training.reaches(1)
    server.wait(large, "PROCESSING")
    training.went_through(2, 4, 1)


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "status", "says"),
    [
        (5, 422, "has 1 to 4 workers, not 5"),
        (0, 422, "workers"),
        ("two", 422, "workers"),
    ],
)
def test_a_number_that_cannot_be(server: Server, workers: object, status: int, says: str) -> None:
    job = server.submit("sleep 600", workers="1..4")
    answer = server.http.post(f"/api/v1/jobs/{job}/scale", json={"workers": workers})
    assert answer.status_code == status
    assert says in answer.json()["error"]["text"]
    server.tell(job, "stop")


def test_a_job_with_a_fixed_number(server: Server) -> None:
    job = server.submit("sleep 600", workers=2)
    done = server.presage("scale", job, "3", "--yes")
    assert done.code == 2
    assert f"job {job} has a fixed number of workers, 2" in done.err
    server.tell(job, "stop")


def test_a_role_is_scaled_by_its_name(server: Server) -> None:
    """Two roles on four devices: the second gets what it is asked to, and only a role it has."""
    one = {"resources": {"gpus": 1}}
    roles = {"worker": {"workers": 1, **one}, "ps": {"workers": "1..3", **one}}
    job = server.submit("sleep 600", roles=roles)
    eventually(lambda: server.job(job)["workers"] == 4)
    done = server.presage("scale", job, "2", "--role", "servers", "--yes")
    assert done.code == 2
    assert "has no role 'servers'; it has worker, ps" in done.err
    done = server.presage("scale", job, "1", "--role", "worker", "--yes")
    assert done.code == 2
    assert "fixed number" in done.err
    done = server.presage("scale", job, "2", "--role", "ps", "--yes")
    assert "2 ps as there is room" in done.out
    eventually(lambda: server.job(job)["workers"] == 3)
    server.tell(job, "stop")


def test_a_job_that_is_over(server: Server) -> None:
    job = server.submit("true", workers="1..4")
    server.wait(job)
    answer = server.http.post(f"/api/v1/jobs/{job}/scale", json={"workers": 2})
    assert answer.status_code == 409
    assert "is over" in answer.json()["error"]["text"]


def test_a_job_nobody_knows(server: Server) -> None:
    answer = server.http.post("/api/v1/jobs/nobody/scale", json={"workers": 2})
    assert answer.status_code == 404
