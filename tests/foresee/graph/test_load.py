"""Targets of every form, and one clear line for everything that can be wrong with them."""

from __future__ import annotations

import base64
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from presage.foresee.graph.load import find_model, load_graph, trace_factory, trace_options
from presage.foresee.graph.opgraph import OpGraph
from presage.model.errors import GraphError, MissingExtra, UserError
from presage.model.setup import Setup

OPTIONS = {"optimizer": "sgd", "precision": "fp32", "inference": False}
SOURCE = """
import torch
from torch import nn

number = 3

def model():
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))

def with_tensor():
    return model(), torch.randn(2, 8)

def with_text():
    return model(), "8"

def with_wrong():
    return model(), {"x": 1}

def looks_at_values():
    if torch.ones(1).item() > 0:
        return model(), torch.ones(2, 8)

def with_arguments(width):
    return nn.Linear(width, width)

def raises():
    raise ValueError("width must be even")

def nothing():
    return None
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(SOURCE)
    return path


def child(source: Path, function: str, inputs: str | None = None) -> OpGraph:
    """What the child process would do, in this one."""
    payload: dict[str, Any] = {
        "place": str(source),
        "function": function,
        "inputs": inputs,
        "options": OPTIONS,
    }
    before = list(sys.path)
    try:
        answer = trace_factory(json.loads(json.dumps(payload)))
    finally:
        sys.path[:] = before
        sys.modules.pop(source.stem, None)
    return OpGraph.from_bytes(base64.b64decode(json.loads(json.dumps(answer))["graph"]))


@pytest.mark.parametrize("function", ["with_tensor", "with_text", "looks_at_values"])
def test_a_factory_that_knows_its_inputs(source: Path, function: str) -> None:
    graph = child(source, function)
    assert graph.forward_macs() == 8 * 4 + 4 * 2
    assert graph.params == 8 * 4 + 4 + 4 * 2 + 2


def test_an_input_can_be_given(source: Path) -> None:
    assert child(source, "model", "8").forward_macs() == 40
    assert child(source, "with_tensor", "5x8").forward_macs() == 200


@pytest.mark.parametrize(
    ("function", "inputs", "message"),
    [
        ("model", None, "add --input"),
        ("model", "9", "1009, 9"),
        ("with_wrong", None, "input of type dict"),
        ("with_arguments", "8", "needs arguments"),
        ("number", "8", "is a int, not a function"),
        ("modle", "8", "did you mean 'model'"),
        ("nothing", "8", "must return a torch module"),
    ],
)
def test_what_is_wrong_with_a_factory_is_said(
    source: Path, function: str, inputs: str | None, message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        child(source, function, inputs)


@pytest.mark.slow
def test_a_factory_runs_in_a_process_of_its_own(source: Path) -> None:
    graph = load_graph(f"{source}:with_tensor", inference=True)
    assert graph.forward_macs() == 40
    assert "models" not in sys.modules


@pytest.mark.slow
def test_a_factory_that_raises_is_one_line(source: Path) -> None:
    with pytest.raises(UserError, match=r"width must be even.*models\.py:\d+") as caught:
        load_graph(f"{source}:raises")
    assert "\n" not in str(caught.value)


def test_a_factory_of_a_module(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    payload = {"place": "models", "function": "with_text", "inputs": None, "options": OPTIONS}
    assert trace_factory(payload)["graph"]
    sys.modules.pop("models")
    with pytest.raises(GraphError, match="no module modles"):
        trace_factory(payload | {"place": "modles"})


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("resnet50", "did you mean zoo:resnet50"),
        ("what", "names no model"),
        ("zoo:resnet5", "did you mean"),
        ("gone.py:model", "gone.py does not exist"),
        ("gone.onnx", "gone.onnx does not exist"),
        ("gone.json", "gone.json does not exist"),
    ],
)
def test_a_target_that_is_not_there(target: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        load_graph(target)


def test_a_bad_input_is_refused_before_anything_runs() -> None:
    with pytest.raises(GraphError, match="is not an input shape"):
        load_graph("zoo:resnet50", inputs="3xa")


def test_a_zoo_entry_can_have_another_input() -> None:
    assert load_graph("zoo:mlp", inputs="5x784").forward_macs() == 5 * (
        784 * 512 + 512 * 512 + 512 * 10
    )


def test_without_torch_the_zoo_works_and_the_rest_says_what_to_install(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else real(name)
    )
    assert load_graph("zoo:mlp", precision="amp").params
    for target in ("zoo:mlp", f"{source}:model"):
        with pytest.raises(MissingExtra, match=r"pip install 'presage\[torch\]'"):
            load_graph(target, inputs="2x784")


def test_what_of_a_setup_changes_the_graph() -> None:
    assert set(trace_options(Setup())) == {"optimizer", "precision", "inference"}
    asked = Setup(checkpoint="full", attention="eager", accumulate=4, seq=16, compile=True)
    more = trace_options(asked)
    assert (more["checkpointing"], more["attention"], more["seq"]) == ("full", "eager", 16)
    assert (more["accumulate"], more["compile"]) == (4, True)


def test_a_name_of_the_hub_that_is_no_decoder() -> None:
    graph = find_model("hf:whisper-tiny").graph(Setup(seq=8, attention="eager"))
    assert graph.name == "openai/whisper-tiny"
    assert graph.params == pytest.approx(37.76e6, rel=1e-4)
    assert graph.inputs[1].shape == (8,)
    assert graph.options["attention"] == "eager"


def test_a_zoo_model_with_options_and_tf32() -> None:
    plain, fast = (load_graph("zoo:mlp", precision=kind) for kind in ("fp32", "tf32"))
    assert fast.options["precision"] == "tf32"
    assert fast.operators == plain.operators
    assert load_graph("zoo:mlp", compile=True).options["compile"] is True
