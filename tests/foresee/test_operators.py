"""Operators: a convolution's kernel, stride and groups follow from what it computes and moves."""

from __future__ import annotations

import numpy as np
import pytest

from presage.foresee._operators import CLASSES, Operators
from presage.foresee.graph.opgraph import KINDS
from presage.foresee.known import known_models


def layer(c: int, d: int, k: int, s: int = 1, g: int = 1, side: int = 28) -> Operators:
    """A k × k convolution of c channels to d, as a trace has it: forward, then backward."""
    kind = "conv" if k > 1 else "pointwise"
    if g > 1:
        kind = "depthwise" if g == c else "grouped"
    weight, inputs, outputs = d * c // g * k * k, c * (side * s) ** 2, d * side**2
    macs = weight * side**2
    code = KINDS.index(kind)
    forward = [code, 0, 0, macs, 0, weight, inputs, 0, 0, outputs, 0, d, side, 1]
    read = [weight, inputs + outputs, 0]
    backward = [code, 1, 0, 2 * macs, 0, *read, weight, inputs, 0, c, side * s, 1]
    return Operators.from_rows(np.array([forward, backward], float), float(weight))


@pytest.mark.parametrize(
    ("operators", "name"),
    [
        (layer(64, 64, 3), "conv plain"),
        (layer(64, 128, 3, s=2), "conv strided"),
        (layer(24, 64, 3), "conv narrow"),
        (layer(3, 64, 7, s=2), "conv first"),
        (layer(96, 192, 2, s=2), "conv patches"),
        (layer(64, 64, 5), "conv large"),
        (layer(64, 256, 1), "pointwise plain"),
        (layer(256, 512, 1, s=2), "pointwise strided"),
        (layer(16, 96, 1), "pointwise narrow"),
        (layer(96, 96, 3, g=96), "depthwise 3"),
        (layer(96, 96, 5, g=96), "depthwise 5"),
        (layer(768, 768, 7, g=768), "depthwise 7"),
        (layer(1536, 1536, 9, g=1536), "depthwise larger"),
        (layer(96, 96, 3, s=2, g=96), "depthwise strided"),
        (layer(128, 128, 3, g=32), "grouped to 6"),
        (layer(256, 256, 3, g=32), "grouped to 12"),
        (layer(512, 512, 3, g=32, s=2), "grouped to 20"),
        (layer(1024, 1024, 3, g=32), "grouped to 36"),
        (layer(2048, 2048, 3, g=32), "grouped wider"),
        (layer(64, 64, 3, g=2), "grouped few"),
    ],
)
def test_a_convolution_is_recognised_in_both_directions(operators: Operators, name: str) -> None:
    assert [CLASSES[i] for i in operators.classes()] == [name, name]


def times(model: str, phase: int) -> dict[str, float]:
    """How often each class of operators runs."""
    known = known_models()
    ops = known.operators(int(known.places([model])[0]))
    here = ops.phase == phase
    counts = np.bincount(ops.classes()[here], ops.count[here], minlength=len(CLASSES))
    return {name: count for name, count in zip(CLASSES, counts.tolist(), strict=True) if count}


@pytest.mark.parametrize("phase", [0, 1])
def test_known_models_are_made_of_what_their_papers_say(phase: int) -> None:
    resnet, mixer = times("resnet50", phase), times("convmixer_768_32", phase)
    assert (resnet["conv first"], resnet["conv strided"], resnet["conv plain"]) == (1, 3, 13)
    assert (resnet["pointwise strided"], resnet["pointwise plain"]) == (3, 33)
    assert resnet["norm by batch"] == 53
    assert (mixer["depthwise 7"], mixer["pointwise plain"]) == (32, 32)
    groups, tokens = times("efficientnet_b0_gn", phase), times("vit_base_patch16_224", phase)
    assert groups["norm by sample"] == 49
    assert tokens["norm tokens"] == 25
    assert "norm by batch" not in groups | tokens


def test_a_retired_name_is_the_model_it_was() -> None:
    known = known_models()
    millions = [
        known.operators(int(place)).params / 1e6
        for place in known.places([f"ig_resnext101_32x{width}d" for width in (8, 16, 32, 48)])
    ]
    assert millions == pytest.approx([88.79, 194.03, 468.53, 828.41], abs=0.01)
