"""Totals and the picture: numbers add up, repeated blocks are drawn once."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from presage.foresee.graph import precomputed, zoo
from presage.foresee.graph.opgraph import OpGraph
from presage.foresee.graph.picture import condense, page
from presage.foresee.graph.summary import short, summarize


def graph_of(name: str, *, inference: bool = False) -> OpGraph:
    graph = precomputed.read(zoo.find(name), inference=inference)
    assert graph is not None
    return graph


def test_the_kinds_and_the_phases_add_up() -> None:
    graph = graph_of("resnet50")
    facts = summarize(graph, batch=32)
    for parts in (facts["kinds"], list(facts["phases"].values())):
        for name in ("operators", "macs", "bytes"):
            assert sum(part[name] for part in parts) == pytest.approx(facts[name])
    assert sum(row["macs_share"] for row in facts["kinds"]) == pytest.approx(1)
    assert facts["per_sample"]["flops"] == 2 * facts["per_sample"]["macs"]
    assert facts["phases"]["forward"]["macs"] == pytest.approx(32 * graph.forward_macs())


def test_bytes_follow_the_type_of_the_values() -> None:
    half = precomputed.read(zoo.find("vgg16"), precision="amp", inference=True)
    assert half is not None
    whole = graph_of("vgg16", inference=True)
    conv = {"float": 0.0, "half": 0.0}
    for name, graph in (("float", whole), ("half", half)):
        rows = summarize(graph, 8)["kinds"]
        conv[name] = next(row["bytes"] for row in rows if row["kind"] == "conv")
    assert conv["half"] == pytest.approx(conv["float"] / 2)


def test_twelve_equal_blocks_are_drawn_once() -> None:
    layers, runs = condense(graph_of("gpt2"))
    repeated = [run for run in runs if run.times > 1]
    assert [run.times for run in repeated] == [12]
    assert sum(run.length * run.times for run in runs) == len(layers)
    assert sum(layer.macs for layer in layers) == pytest.approx(graph_of("gpt2").forward_macs())


@pytest.mark.parametrize(
    "name", ["resnet152", "densenet201", "cyclegan", "yolov3", "td3", "neumf"]
)
def test_a_picture_has_at_most_150_boxes(name: str) -> None:
    text = page(graph_of(name))
    assert 1 <= text.count('class="box"') <= 150
    assert "http" not in re.sub(r'xmlns="[^"]*"', "", text)  # it needs nothing else


def test_a_model_without_repeats_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("presage.foresee.graph.picture._MOST_BOXES", 3)
    text = page(graph_of("yolov3"))
    assert text.count('class="box"') <= 3
    assert "more layers" in text


def test_a_graph_without_operators_has_a_picture() -> None:
    graph = graph_of("mlp", inference=True)
    nothing = np.zeros(0, np.int64)
    bare = replace(
        graph,
        operators=(),
        kind=nothing,
        phase=nothing,
        shapes=(),
        dtypes=(),
        macs=np.zeros((0, 3)),
        read=np.zeros((0, 3)),
        written=np.zeros((0, 3)),
        weights=np.zeros(0),
        edges=np.zeros((0, 2), np.int64),
    )
    assert "<svg" in page(bare)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(4.0892e9, "", "4.089 G"), (512, "B", "512 B"), (0, "", "0"), (1.5e12, "B", "1.5 TB")],
)
def test_numbers_are_short(value: float, unit: str, text: str) -> None:
    assert short(value, unit) == text
