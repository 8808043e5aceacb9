"""The published models give the published answers."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from presage.model.errors import BundleError, TelemetryError
from presage.observe.phases import PhaseModel


def test_activations_and_phases_are_those_of_the_authors(shared_data: Path) -> None:
    folder = shared_data / "peers/ai4dl"
    model = PhaseModel.from_hiest(folder)
    telemetry = shared_data / "telemetry/ai4dl_dlaas.csv"
    with np.load(folder / "activations_exec1_exec2.npz") as file:
        expected = file["activations"]
    found = model.activations(telemetry)
    both = np.concatenate([found["exec1"], found["exec2"]])
    np.testing.assert_allclose(both, expected, atol=1e-6)
    phases = model.predict(telemetry)
    assert list(phases) == ["exec1", "exec2", "exec3", "exec4"]
    with (folder / "phases_exec1_exec2.csv").open() as file_:
        rows = list(csv.DictReader(file_))
    for pod in ("exec1", "exec2"):
        assert phases[pod].tolist() == [int(r["phase"]) for r in rows if r["pod.id"] == pod]


def test_a_header_that_is_one_field_short(shared_data: Path) -> None:
    model = PhaseModel.from_hiest(shared_data / "peers/ai4dl")
    phases = model.predict(shared_data / "telemetry/ai4dl_vr.csv")
    assert {pod: len(found) for pod, found in phases.items()} == {"exec2": 2286}
    assert len(set(phases["exec2"].tolist())) > 2


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A model of two features, three hidden units and a history of one."""
    random = np.random.default_rng(0)
    scaler = {"features": ["a", "b"], "mean": [1.0, 2.0], "scale": [1.0, 0.5]}
    (tmp_path / "scaler.json").write_text(json.dumps(scaler))
    np.savez(
        tmp_path / "crbm_weights.npz",
        W=random.normal(size=(3, 2)).astype(np.float32),
        A=random.normal(size=(2, 2)).astype(np.float32),
        B=random.normal(size=(3, 2)).astype(np.float32),
        v_bias=np.zeros((2, 1), np.float32),
        h_bias=np.zeros((3, 1), np.float32),
    )
    np.savez(tmp_path / "kmeans_centers.npz", centers=np.array([[0.0, 0, 0], [1, 1, 1]]))
    return tmp_path


def test_rows_are_taken_in_the_order_of_the_file_pod_by_pod(tiny: Path) -> None:
    path = tiny / "x.csv"
    rows = ["pod.id,timestamp,a,b", "x,3,1,2", "y,1,5,5", "x,1,4,4", "x,2,0,1"]
    path.write_text("\n".join(rows) + "\n")
    model = PhaseModel.from_hiest(tiny)
    found = model.activations(path)["x"]
    weights = model.crbm.weights_
    now, before = (np.array([4.0, 4]) - [1, 2]) / [1, 0.5], np.zeros(2)
    hidden = 1 / (1 + np.exp(-(weights.W @ now + weights.B @ before)))
    np.testing.assert_allclose(found, [np.zeros(3), np.zeros(3), hidden], atol=1e-12)
    assert [len(phases) for phases in model.predict(path).values()] == [3, 1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pod.id,a,b\nx,1,NA\n", "line 2"),
        ("pod.id,a,b\nx,1,2\nx,1,\n", "line 3"),
        ("pod.id,a,b\nx,1,nan\n", "line 2"),
        ("pod.id,a\nx,1\n", "no column 'b'"),
        ("pod.id,a,b\nx,1\n", "line 2"),
    ],
)
def test_rows_that_cannot_be_used_are_named(tiny: Path, text: str, says: str) -> None:
    path = tiny / "x.csv"
    path.write_text(text)
    with pytest.raises(TelemetryError, match=says):
        PhaseModel.from_hiest(tiny).predict(path)


def test_a_folder_that_holds_no_model_is_refused(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be read"):
        PhaseModel.from_hiest(tmp_path / "nowhere")
    with pytest.raises(TelemetryError, match="cannot be read"):
        PhaseModel.from_hiest(tiny).predict(tiny / "nothing.csv")
    np.savez(tiny / "kmeans_centers.npz", centers=np.zeros((2, 7)))
    with pytest.raises(BundleError, match="do not fit"):
        PhaseModel.from_hiest(tiny)
    shutil.copy(tiny / "scaler.json", tiny / "kmeans_centers.npz")
    with pytest.raises(BundleError, match="no model"):
        PhaseModel.from_hiest(tiny)
