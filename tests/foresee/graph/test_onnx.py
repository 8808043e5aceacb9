"""ONNX files, built here node by node: work and parameters are those of the layers they hold."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from presage.foresee.graph.load import load_graph
from presage.foresee.graph.onnx_reader import read_onnx
from presage.model.errors import GraphError, MissingExtra

Nodes = Sequence[Any]


def save(
    path: Path,
    nodes: Nodes,
    inputs: dict[str, Sequence[int | str]],
    constants: dict[str, Any],
    *,
    integers: bool = False,
    check: bool = True,
) -> Path:
    """A file with these nodes; the last node's first output is the model's."""
    kind = TensorProto.INT64 if integers else TensorProto.FLOAT
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
        [
            helper.make_tensor_value_info(
                nodes[-1].output[0], TensorProto.FLOAT, ["rows", "columns"]
            )
        ],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 9
    if check:
        onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return path


def floats(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def block(batch: int | str, flat: Sequence[int]) -> tuple[Nodes, dict[str, Any], dict[str, Any]]:
    """A residual block of convolutions, pooled and classified; `flat` is the last Reshape."""
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "w1"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        make("BatchNormalization", ["a", "g", "b", "m", "v"], ["n"]),
        make("Relu", ["n"], ["r"]),
        make("Conv", ["r", "w2", "c2"], ["d"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], group=4),
        make("Add", ["d", "x"], ["s"]),
        make("MaxPool", ["s"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        make("GlobalAveragePool", ["p"], ["q"]),
        make("Reshape", ["q", "flat"], ["f"]),
        make("Gemm", ["f", "w3", "b3"], ["y"], transB=1),
    ]
    constants = {
        "w1": floats(8, 8, 3, 3),
        "g": floats(8),
        "b": floats(8),
        "m": floats(8),
        "v": floats(8),
        "w2": floats(8, 2, 3, 3),
        "c2": floats(8),
        "flat": ints(*flat),
        "w3": floats(10, 8),
        "b3": floats(10),
    }
    return nodes, {"x": [batch, 8, 16, 16]}, constants


BLOCK_MACS = 16 * 16 * (8 * 8 * 9 + 8 * 2 * 9) + 8 * 10
BLOCK_PARAMS = 8 * 8 * 9 + 8 + 8 + 8 * 2 * 9 + 8 + 10 * 8 + 10


@pytest.mark.parametrize(
    ("batch", "flat"), [("N", (-1, 8)), ("N", (0, -1)), (1, (1, 8)), (1, (1, -1)), (4, (4, 8))]
)
def test_a_block_of_convolutions_at_any_batch(
    tmp_path: Path, batch: int | str, flat: Sequence[int]
) -> None:
    path = save(tmp_path / "block.onnx", *block(batch, flat))
    graph = read_onnx(path)
    assert graph.forward_macs() == BLOCK_MACS
    assert (graph.params, graph.trainable) == (BLOCK_PARAMS, BLOCK_PARAMS)
    assert bool(graph.notes) == isinstance(batch, int)
    inference = load_graph(str(path), inference=True)
    assert inference.forward_macs() == BLOCK_MACS
    assert len(inference) < len(graph)
    assert inference.name == "block"


def test_attention_from_its_pieces_with_shapes_that_are_computed(tmp_path: Path) -> None:
    make = helper.make_node
    nodes: list[Any] = [
        make("Gather", ["table", "tokens"], ["e"]),
        make("LayerNormalization", ["e", "g", "b"], ["x"], axis=-1),
        make("Shape", ["x"], ["shape"]),
        make("Gather", ["shape", "zero"], ["n"]),
        make("Unsqueeze", ["n", "axis"], ["n1"]),
        make("Concat", ["n1", "rest"], ["split"], axis=0),
    ]
    for name, order in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        nodes += [
            make("MatMul", ["x", f"w{name}"], [f"{name}0"]),
            make("Reshape", [f"{name}0", "split"], [f"{name}1"]),
            make("Transpose", [f"{name}1"], [name], perm=order),
        ]
    nodes += [
        make("MatMul", ["q", "k"], ["s0"]),
        make("Div", ["s0", "root"], ["s1"]),
        make("Softmax", ["s1"], ["s"], axis=-1),
        make("MatMul", ["s", "v"], ["o0"]),
        make("Transpose", ["o0"], ["o1"], perm=(0, 2, 1, 3)),
        make("Reshape", ["o1", "joined"], ["o2"]),
        make("MatMul", ["o2", "wo"], ["o3"]),
        make("Add", ["o3", "x"], ["o4"]),
        make("Div", ["o4", "root"], ["o5"]),
        make("Erf", ["o5"], ["o6"]),
        make("ReduceMean", ["o6", "axis1"], ["o7"], keepdims=0),
        make("Slice", ["o7", "axis", "three", "axis1"], ["y"]),
    ]
    constants = {
        "table": floats(50, 32),
        "g": floats(32),
        "b": floats(32),
        "zero": np.array(0, np.int64),
        "axis": ints(0),
        "axis1": ints(1),
        "three": ints(3),
        "rest": ints(12, 4, 8),
        "joined": ints(0, 0, 32),
        "root": np.array(2.8, np.float32),
    }
    constants |= {f"w{name}": floats(32, 32) for name in "qkvo"}
    path = save(tmp_path / "a.onnx", nodes, {"tokens": ["N", 12]}, constants, integers=True)
    graph = read_onnx(path)
    assert graph.forward_macs() == 12 * 4 * 32 * 32 + 2 * 12 * 12 * 32
    assert graph.params == 50 * 32 + 2 * 32 + 4 * 32 * 32
    assert "embedding" in graph.operators
    assert not {"cat", "index_select"} & set(graph.operators)  # shapes stay out of the graph


def test_a_recurrent_layer(tmp_path: Path) -> None:
    make = helper.make_node
    nodes = [
        make("Transpose", ["x"], ["t"], perm=(1, 0, 2)),
        make("LSTM", ["t", "w", "r", "b"], ["o", "h", "c"], hidden_size=6, direction="forward"),
        make("Squeeze", ["o", "one"], ["s"]),
        make("Transpose", ["s"], ["y"], perm=(1, 0, 2)),
    ]
    constants = {
        "w": floats(1, 24, 5),
        "r": floats(1, 24, 6),
        "b": floats(1, 48),
        "one": ints(1),
    }
    path = save(tmp_path / "lstm.onnx", nodes, {"x": ["N", 7, 5]}, constants)
    assert read_onnx(path, inference=True).forward_macs() == 7 * 24 * (5 + 6)


@pytest.mark.parametrize(
    ("op", "attributes", "more", "size"),
    [
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [0, 0, 1, 1]}, {}, 2 * 7 * 7),
        ("MaxPool", {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"}, {}, 2 * 8 * 8),
        ("Resize", {"mode": "linear"}, {"": None, "k": ints(1, 2, 4, 4)}, 2 * 4 * 4),
        ("Pad", {"mode": "reflect"}, {"k": ints(0, 0, 1, 1, 0, 0, 2, 2)}, 2 * 11 * 11),
        ("Split", {"axis": 1}, {"k": ints(1, 1)}, 8 * 8),
        ("Slice", {}, {"s": ints(6), "e": ints(1), "a": ints(2), "d": ints(-2)}, 2 * 3 * 8),
        ("Expand", {}, {"k": ints(1, 2, 8, 8)}, 2 * 8 * 8),
        ("Tile", {}, {"k": ints(1, 1, 2, 1)}, 2 * 16 * 8),
        ("Clip", {}, {"k": np.array(0.0, np.float32), "l": np.array(6.0, np.float32)}, 128),
        ("ReduceL2", {"keepdims": 0}, {"k": ints(2, 3)}, 2),
        ("InstanceNormalization", {}, {"k": floats(2), "l": floats(2)}, 2 * 8 * 8),
        ("DepthToSpace", {"blocksize": 1}, {}, 2 * 8 * 8),
    ],
)
def test_the_sizes_that_operators_make(
    tmp_path: Path, op: str, attributes: dict[str, Any], more: dict[str, Any], size: int
) -> None:
    make = helper.make_node
    names = [name for name in more if name]
    given = ["p", *more] if op != "Resize" else ["p", "", "", "k"]
    outputs = ["o", "o2"] if op == "Split" else ["o"]
    nodes = [
        make("Mul", ["x", "scale"], ["p"]),
        make(op, given, outputs, **attributes),
        make("Flatten", ["o"], ["f"], axis=1),
        make("Sigmoid", ["f"], ["y"]),
    ]
    constants = {"scale": floats(2, 8, 8)} | {name: more[name] for name in names}
    path = save(tmp_path / "op.onnx", nodes, {"x": ["N", 2, 8, 8]}, constants, check=False)
    graph = read_onnx(path, inference=True)
    assert graph.written[-1, 1] == size


def test_open_sizes_must_be_given(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = save(tmp_path / "m.onnx", nodes, {"x": ["N", "length", 4]}, {"w": floats(4, 3)})
    with pytest.raises(GraphError, match=r"leaves sizes of the input x open \(length\)"):
        read_onnx(path)
    assert load_graph(str(path), inputs="5x4").forward_macs() == 5 * 4 * 3
    with pytest.raises(GraphError, match="has 1 inputs"):
        load_graph(str(path), inputs="5x4,3")


def test_files_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    good = save(tmp_path / "good.onnx", *block("N", (-1, 8)))
    cases = {"empty": b"", "text": b"not a model", "cut": good.read_bytes()[:700]}
    for name, data in cases.items():
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(data)
        with pytest.raises(GraphError, match=r"not an ONNX file|not a valid ONNX") as caught:
            read_onnx(path)
        assert "\n" not in str(caught.value)


def test_an_unknown_operator_is_named(tmp_path: Path) -> None:
    node = helper.make_node("NonZero", ["x"], ["y"])
    path = save(tmp_path / "n.onnx", [node], {"x": ["N", 4]}, {}, check=False)
    with pytest.raises(GraphError, match="the operator NonZero is not supported"):
        read_onnx(path)


def test_weights_in_another_file_are_not_needed(tmp_path: Path) -> None:
    path = save(tmp_path / "e.onnx", *block("N", (-1, 8)))
    model = onnx.load(str(path))
    onnx.save(
        model,
        str(path),
        save_as_external_data=True,
        location="weights",
        size_threshold=200,
        convert_attribute=False,
    )
    (tmp_path / "weights").unlink()
    assert read_onnx(path).forward_macs() == BLOCK_MACS


def test_without_onnx_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "m.onnx", *block("N", (-1, 8)))
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r"presage\[onnx\]"):
        read_onnx(path)
