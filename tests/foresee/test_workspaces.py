"""Workspaces of Fourier transforms: sizes worked out by hand, and what cannot be tried."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from presage.foresee._workspaces import tried_workspaces
from presage.foresee.allocator import MIB, live_peak
from presage.foresee.graph.opgraph import InputSpec
from presage.foresee.graph.torch_trace import trace


def spectra(side: int, inputs: int, outputs: int) -> float:
    """MiB of the half spectra of all filters, twice, in complex numbers of 8 bytes."""
    return 2 * 8 * side * (side // 2 + 1) * inputs * outputs / MIB


def tried(shape: tuple[int, ...], *layers: nn.Module, batch: int = 4) -> tuple[float, float]:
    """The most that is in use with the workspace, and all workspaces."""
    graph = trace(nn.Sequential(*layers, nn.Flatten()), (InputSpec(shape),))
    return tried_workspaces(graph, batch, live_peak(graph, batch).alive)


@pytest.mark.parametrize(
    ("shape", "layer", "side"),
    [
        ((32, 14, 14), nn.Conv2d(32, 48, 1), 16),
        ((32, 14, 14), nn.Conv2d(32, 48, 3, padding=1, bias=False), 16),
        ((32, 16, 16), nn.Conv2d(32, 48, 3, padding=1), 32),  # 16 and the reach of the kernel
        ((32, 4, 200), nn.Conv2d(32, 48, 1), 256),  # the longer side decides
        ((32, 250, 250), nn.Conv2d(32, 48, 7, padding=3), 256),
    ],
)
def test_an_image_is_padded_to_a_square(
    shape: tuple[int, ...], layer: nn.Module, side: int
) -> None:
    most, total = tried(shape, layer)
    assert total == pytest.approx(spectra(side, 32, 48))
    inside = 4 * 80 * shape[1] * shape[2] * 4 / MIB  # images in and out; weights are small
    assert most == pytest.approx(total + inside, abs=0.5)


@pytest.mark.parametrize(
    ("shape", "layer"),
    [
        ((32, 28, 28), nn.Conv2d(32, 48, 3, stride=2, padding=1)),
        ((32, 28, 28), nn.Conv2d(32, 48, 1, stride=2)),
        ((32, 28, 28), nn.Conv2d(32, 48, 4, stride=4)),
        ((32, 28, 28), nn.Conv2d(32, 32, 3, padding=1, groups=32)),
        ((32, 28, 28), nn.Conv2d(32, 64, 3, padding=1, groups=4)),
        ((32, 255, 255), nn.Conv2d(32, 48, 3, padding=1)),
        ((32, 28), nn.Conv1d(32, 48, 1)),
        ((2048, 4, 200), nn.Conv2d(2048, 4096, 1)),  # terabytes
    ],
)
def test_what_is_not_tried(shape: tuple[int, ...], layer: nn.Module) -> None:
    assert tried(shape, layer) == (0.0, 0.0)


def test_like_convolutions_are_tried_once() -> None:
    like = [nn.Conv2d(64, 64, 1) for _ in range(3)]
    _, total = tried((64, 14, 14), *like, nn.Conv2d(64, 128, 1))
    assert total == pytest.approx(spectra(16, 64, 64) + spectra(16, 64, 128))


def test_a_batch_leaves_less_room() -> None:
    """The workspace itself does not depend on the batch."""
    layers = (nn.Conv2d(64, 128, 1), nn.Conv2d(128, 257, 1))
    sizes = [spectra(256, 64, 128), spectra(256, 128, 257)]
    totals = [tried((64, 4, 256), *layers, batch=batch)[1] for batch in (1, 64, 16384, 65536)]
    assert np.allclose(totals, [sum(sizes), sum(sizes), sizes[0], 0])
