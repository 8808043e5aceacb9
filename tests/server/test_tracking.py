"""Metrics of a job in MLflow and TensorBoard, written by the real libraries and read back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.kit import PATIENCE_S, Server, eventually

_TRAIN = """
import sys
from presage import job
for step in (1, 2, 3):
    job.progress(step=step, steps=3, metrics={"loss": 1.0 / step})
"""


@pytest.mark.slow
def test_metrics_go_to_mlflow_and_tensorboard(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("tensorboard")
    runs = tmp_path / "mlruns"
    server = serve(
        *("--track-mlflow", f"file://{runs}"), env={"MLFLOW_ALLOW_FILE_STORE": "true"}
    ).start()
    job = server.submit(
        ["python", "-c", _TRAIN],
        name="fit",
        env={"LR": "0.1"},
        labels={"project": "vision"},
        track={"tensorboard": "runs/tb"},
    )
    assert server.client().job(job).wait(PATIENCE_S).status == "COMPLETED"
    (status,) = eventually(lambda: list(runs.glob("*/*/tags/presage.status")))
    run = status.parents[1]
    assert status.read_text() == "COMPLETED"
    assert (run / "params" / "env.LR").read_text() == "0.1"
    assert (run / "params" / "label.project").read_text() == "vision"
    lines = [line.split() for line in (run / "metrics" / "loss").read_text().splitlines()]
    losses = {int(step): float(value) for _, value, step in lines}
    assert losses[3] == pytest.approx(1 / 3)
    assert set(losses) <= {1, 2, 3}
    eventually(lambda: "status: 3" in (run / "meta.yaml").read_text())  # FINISHED

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    page = server.client().results(job)
    assert [file.path.startswith("runs/tb/events.out.tfevents.") for file in page.files] == [True]
    server.client().job(job).download(tmp_path / "got")
    read = EventAccumulator(str(tmp_path / "got" / "runs" / "tb")).Reload()
    scalars = {event.step: event.value for event in read.Scalars("loss")}
    assert scalars == pytest.approx(losses)
    plugins = read.summary_metadata
    assert "_hparams_/session_start_info" in plugins
    assert "_hparams_/session_end_info" in plugins


def test_a_missing_package_is_said_with_the_command_that_installs_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io
    import json
    import sys

    from presage.control.records import tracker_process

    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setitem(sys.modules, "mlflow.entities", None)
    order = {"job": "j", "do": "begin", "mlflow": "http://127.0.0.1:9", "tensorboard": ""}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(order) + "\n"))
    tracker_process.main()
    said = json.loads(capsys.readouterr().out)
    assert said["error"] == "mlflow: mlflow is not installed here: pip install 'presage[mlflow]'"
