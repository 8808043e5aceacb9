"""The operators of a step, like ones counted, and which kind of kernel a GPU runs for each.

A graph does not record the kernel size, stride and groups of a convolution; they follow from how
much it computes, reads and writes. Nothing here depends on a GPU or on the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from presage.foresee.graph.opgraph import CONVOLUTIONS, KINDS, OpGraph
from presage.learn import Floats

__all__ = ["CLASSES", "Operators"]

Ints = npt.NDArray[np.int64]

_NARROW = 32
_FEW_GROUPS = 8

_VARIANTS = {
    "conv": ("first", "patches", "narrow", "strided", "large", "plain"),
    "pointwise": ("narrow", "strided", "plain"),
    "depthwise": ("strided", "3", "5", "7", "larger"),
    "grouped": ("few", "to 6", "to 12", "to 20", "to 36", "wider"),
    "linear": ("unaligned", "plain"),
    "matmul": ("unaligned", "plain"),
    "norm": ("tokens", "by sample", "by batch"),
    "activation": ("tokens", "image"),
    "elementwise": ("tokens", "image"),
    "copy": ("tokens", "image"),
    "reduce": ("tokens", "image"),
    "pool": ("tokens", "image"),
}
CLASSES = tuple(
    f"{kind} {variant}".rstrip() for kind in KINDS for variant in _VARIANTS.get(kind, ("",))
)
"""Kinds of operators, those whose kernels differ much divided further."""


@dataclass(frozen=True, slots=True)
class Operators:
    """The operators of a step, like ones counted; sizes are polynomials in the batch."""

    kind: Ints
    phase: Ints
    count: Floats
    macs: Floats
    read: Floats
    written: Floats
    channels: Floats
    """Of the output: the second dimension of an image, a volume or what a convolution makes, else
    the last one."""
    side: Floats
    """Width of the output if it is an image or a volume, else 0."""
    params: float

    @classmethod
    def of(cls, graph: OpGraph) -> Operators:
        """Those of a graph; casts are left out, since the precision is asked for elsewhere."""
        kept = np.array([name != "_to_copy" for name in graph.operators], bool)
        convolves = np.isin(graph.kind, [KINDS.index(kind) for kind in CONVOLUTIONS])
        channels = [
            abs(s[1]) if len(s) > 3 or (conv and len(s) == 3) else abs(s[-1]) if s else 1
            for s, conv in zip(graph.shapes, convolves, strict=True)
        ]
        side = [abs(s[-1]) if len(s) > 3 else 0 for s in graph.shapes]
        rows = np.c_[
            graph.kind, graph.phase, graph.macs, graph.read, graph.written, channels, side
        ]
        unlike, count = np.unique(rows[kept], axis=0, return_counts=True)
        return cls.from_rows(np.c_[unlike, count], float(graph.params))

    @classmethod
    def from_rows(cls, rows: Floats, params: float) -> Operators:
        """From the columns that `rows` gives."""
        return cls(
            kind=rows[:, 0].astype(np.int64),
            phase=rows[:, 1].astype(np.int64),
            macs=rows[:, 2:5],
            read=rows[:, 5:8],
            written=rows[:, 8:11],
            channels=rows[:, 11],
            side=rows[:, 12],
            count=rows[:, 13],
            params=params,
        )

    def rows(self) -> Floats:
        """All columns as one table."""
        table: Floats = np.c_[
            self.kind,
            self.phase,
            self.macs,
            self.read,
            self.written,
            self.channels,
            self.side,
            self.count,
        ]
        return table

    def classes(self) -> Ints:
        """Index into CLASSES of each."""
        out = np.array([_FIRST[kind] for kind in KINDS])[self.kind]
        image = self.side > 0
        for kind in ("activation", "elementwise", "copy", "reduce", "pool"):
            out += (self.kind == KINDS.index(kind)) & image
        norm = (self.kind == KINDS.index("norm")) & image
        out += norm * np.where(self._over_the_batch(), 2, 1)
        reduction = np.round(_ratio(self.macs[:, 1], self.written[:, 1]))
        aligned = (self.channels % 8 == 0) & (reduction % 8 == 0)
        out += np.isin(self.kind, [KINDS.index("linear"), KINDS.index("matmul")]) & aligned
        return np.asarray(out + self._convolutions())

    def _over_the_batch(self) -> npt.NDArray[np.bool_]:
        """Whether a normalisation keeps statistics of the batch: it writes them forward, and
        reads them backward beside the weight and the bias whose gradients it writes."""
        kept, weights = self.read[:, 0], self.written[:, 0]
        return np.where(self.phase == 0, weights > 0, kept > 1.2 * weights)

    def _convolutions(self) -> Ints:
        """Which variant of its kind a convolution is; 0 for all else.

        With c channels in and d out, a k × k kernel, stride s and g groups, a position of the
        output costs d·c/g·k² products. Forward, the input has c·s² elements for each. Backward,
        the channels are those of the input, whose gradient has as many elements.
        """
        forward = self.phase == 0
        both = (self.written[:, 0] > 0) & (self.written[:, 1] > 0)
        weight = np.where(forward, _ratio(self.macs[:, 1], self._positions()), self.read[:, 0])
        positions = np.where(
            forward, self._positions(), _ratio(self.macs[:, 1], weight * np.where(both, 2, 1))
        )
        inputs = np.where(forward, self.read[:, 1], self.written[:, 1])
        outputs = np.where(forward, self.written[:, 1], self.read[:, 1] - self.written[:, 1])
        out_channels = _ratio(outputs, positions)
        fan_in = _ratio(weight, out_channels)  # c/g·k²
        per_position = _ratio(inputs, positions)  # c·s²
        kernel = _ratio(fan_in, per_position)  # k²/s² of one group
        area = np.select([kernel > 30, kernel > 20, kernel > 10], [49.0, 25.0, 49.0], 9.0)
        narrowest = np.minimum(fan_in / area, out_channels)
        only_weight = ~forward & (inputs == 0)  # nobody asks for the gradient of the images
        first = only_weight | (fan_in / area < 5)
        conv = np.select(
            [first, kernel < 1.2, narrowest <= _NARROW, kernel < 8, kernel > 10], range(5), 5
        )
        pointwise = np.select(
            [np.minimum(fan_in, out_channels) <= _NARROW, per_position > 1.5 * fan_in], range(2), 2
        )
        depthwise = np.select(
            [inputs > 1.5 * outputs, fan_in < 12, fan_in < 30, fan_in < 60], range(4), 4
        )
        width = fan_in / 9
        few = (out_channels / np.maximum(width, 1) < _FEW_GROUPS) & (width <= 36)
        grouped = np.select([few, width <= 6, width <= 12, width <= 20, width <= 36], range(5), 5)
        kinds = [
            self.kind == KINDS.index(k) for k in ("conv", "pointwise", "depthwise", "grouped")
        ]
        return np.select(kinds, [conv, pointwise, depthwise, grouped], 0)

    def _positions(self) -> Floats:
        return _ratio(self.written[:, 1], self.channels)


_FIRST = {
    kind: next(i for i, name in enumerate(CLASSES) if name.split(" ")[0] == kind) for kind in KINDS
}


def _ratio(above: Floats, below: Floats) -> Floats:
    return np.asarray(above / np.maximum(below, 1e-9))
