"""A small autograd on sizes alone: a block's operators, and the backward pass they lead to.

Every operator says what PyTorch saves for its gradient; a tensor lives until its last reader. The
result is a template with two segments (forward 0, backward 1) that can be repeated layer by layer.
Sizes are per sample; nothing here knows a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from presage.foresee.graph.opgraph import KINDS, ROLES

__all__ = ["Tape", "TapeValue", "TapeWeight"]

Place = tuple[int, int]
"""(segment, operator of it)."""


@dataclass(slots=True, eq=False)
class TapeValue:
    """One tensor."""

    count: float
    """Elements, of one sample where `power` is 1."""
    width: float
    """Bytes of an element."""
    grad: bool
    born: Place
    last: Place
    power: int = 1
    role: int = -1
    lasts: bool = False
    """Stays after the step."""
    sources: tuple[TapeValue, ...] = ()
    """What it can be computed from again, where that is done instead of saving it."""
    remade: bool = False
    """It is always made from its sources again."""
    writer: Place | None = None


@dataclass(slots=True, eq=False)
class TapeWeight:
    """A weight of the block."""

    count: float
    width: float
    """Bytes of a stored element."""
    trainable: bool = True
    cast: float = 0.0
    """Bytes of an element of the copy that products use; 0 if they use the weight itself."""
    cached: bool = False
    """The copy is made once and kept for the backward pass (autocast), not made anew."""
    copy: TapeValue | None = None
    alias: bool = False
    """The storage of another weight: counted there, but for its gradient."""
    merge: bool = False
    """Its gradient is added to that of its alias."""


@dataclass(slots=True, eq=False)
class _TapeStep:
    """An operator that has a gradient."""

    name: str
    kind: str
    inputs: tuple[TapeValue, ...]
    out: TapeValue
    saves: tuple[TapeValue, ...]
    macs: float
    parameter: TapeWeight | None = None
    shares: bool = False
    split: bool = False
    back_macs: float = 2.0
    in_place: bool = False


@dataclass(slots=True, eq=False)
class _TapeRegion:
    """Operators that are run again in the backward pass."""

    run: Callable[[tuple[TapeValue, ...]], TapeValue]
    inputs: tuple[TapeValue, ...]
    out: TapeValue


@dataclass(slots=True)
class TapeRow:
    """One operator of a template."""

    name: str
    kind: int
    segment: int
    last: float
    """Innermost size of its output."""
    width: float
    macs: float
    read: float
    written: float
    weights: float
    read_once: float
    """Elements that do not depend on the batch."""
    written_once: float


@dataclass(slots=True)
class Tape:
    """Records a block: forward operators as they are called, then `backward`."""

    again: bool = False
    """Values with `sources` are computed again instead of saved."""
    accumulate: bool = False
    gradient_width: Callable[[TapeWeight], float] = lambda parameter: parameter.width
    rows: tuple[list[TapeRow], list[TapeRow]] = field(default_factory=lambda: ([], []))
    values: list[TapeValue] = field(default_factory=list)
    edges: list[tuple[Place, Place]] = field(default_factory=list)
    parameters: list[TapeWeight] = field(default_factory=list)
    segment: int = 0
    learning: bool = True
    steps: list[_TapeStep | _TapeRegion] = field(default_factory=list)
    grads: dict[int, TapeValue] = field(default_factory=dict)
    held: list[TapeValue] = field(default_factory=list)
    """Inputs of quantised products."""

    # -- values

    def given(
        self, count: float, width: float, *, segment: int = 0, grad: bool = True
    ) -> TapeValue:
        """What the operator before this block wrote."""
        place = (segment, -1)
        value = TapeValue(count, width, grad, place, place, writer=place)
        self.values.append(value)
        return value

    def add_parameter(self, parameter: TapeWeight) -> TapeWeight:
        self.parameters.append(parameter)
        return parameter

    def touch(self, *values: TapeValue) -> None:
        """These are read now."""
        here = (self.segment, len(self.rows[self.segment]) - 1)
        for value in values:
            value.last = max(value.last, here)

    def emit(
        self,
        name: str,
        kind: str,
        inputs: Sequence[TapeValue],
        outs: Sequence[tuple[float, float, int]],
        *,
        macs: float = 0.0,
        weights: float = 0.0,
        last: float = 0.0,
    ) -> list[TapeValue]:
        """One operator that writes tensors of (elements, bytes each, power of the batch)."""
        rows = self.rows[self.segment]
        here = (self.segment, len(rows))
        made = [TapeValue(n, w, False, here, here, power=p, writer=here) for n, w, p in outs]
        self.values += made
        width = outs[0][1] if outs else (inputs[0].width if inputs else 4)
        rows.append(
            TapeRow(
                name,
                KINDS.index(kind),
                self.segment,
                last,
                width,
                macs,
                read=sum(v.count for v in inputs if v.power),
                written=sum(n for n, _, p in outs if p),
                weights=weights,
                read_once=sum(v.count for v in inputs if not v.power) + weights,
                written_once=sum(n for n, _, p in outs if not p),
            )
        )
        self.touch(*inputs)
        for value in inputs:
            if value.writer is not None:
                self.edges.append((value.writer, here))
        return made

    # -- forward

    def apply(
        self,
        name: str,
        kind: str,
        inputs: Sequence[TapeValue],
        count: float,
        width: float,
        *,
        saves: Sequence[TapeValue] = (),
        save_out: bool = False,
        extra: float = 0.0,
        parameter: TapeWeight | None = None,
        macs: float = 0.0,
        back_macs: float = 2.0,
        shares: bool = False,
        split: bool = False,
        in_place: bool = False,
        last: float = 0.0,
    ) -> TapeValue:
        """An operator with its gradient; `extra` bytes a sample are saved beside (a mask, say)."""
        reads = list(inputs)
        if parameter is not None:
            self._copy(parameter, reads)
        out = self.emit(
            name,
            kind,
            reads,
            [(count, width, 1)],
            macs=macs,
            weights=parameter.count if parameter else 0.0,
            last=last,
        )[0]
        trains = parameter is not None and parameter.trainable
        out.grad = self.learning and (trains or any(v.grad for v in inputs))
        if out.grad:
            kept = [*saves, *([out] if save_out else []), *self._beside(out, extra, parameter)]
            self.steps.append(
                _TapeStep(
                    name,
                    kind,
                    tuple(inputs),
                    out,
                    tuple(kept),
                    macs,
                    parameter,
                    shares,
                    split,
                    back_macs,
                    in_place,
                )
            )
        return out

    def _beside(
        self, out: TapeValue, extra: float, parameter: TapeWeight | None
    ) -> Iterator[TapeValue]:
        """What is saved that no other operator sees: a mask, the copy of a weight."""
        if extra:
            mask = TapeValue(extra, 1.0, False, out.born, out.born)
            self.values.append(mask)
            yield mask
        if parameter is not None and parameter.cached and parameter.copy is not None:
            yield parameter.copy

    def _copy(self, parameter: TapeWeight, reads: list[TapeValue]) -> None:
        """The copy of a weight that a product reads."""
        if not parameter.cast:
            return
        if parameter.copy is None or not parameter.cached:
            name = "cast" if parameter.cached else "dequantize"
            parameter.copy = self.emit(name, "copy", [], [(parameter.count, parameter.cast, 0)])[0]
        reads.append(parameter.copy)

    def region(
        self, run: Callable[[tuple[TapeValue, ...]], TapeValue], inputs: tuple[TapeValue, ...]
    ) -> TapeValue:
        """Operators whose results are not kept: they run again in the backward pass."""
        if not self.learning:
            return run(inputs)
        self.learning = False
        out = run(inputs)
        self.learning = True
        out.grad = True
        self.steps.append(_TapeRegion(run, inputs, out))
        return out

    # -- backward

    def backward(self, out: TapeValue, gradient: TapeValue | None) -> None:
        """The backward pass from `out`; `gradient` is None where the block ends in the loss."""
        self.segment = 1
        if gradient is not None:
            self.grads[id(out)] = gradient
        else:
            seed = self.emit("seed", "elementwise", [], [(1.0, 4.0, 0)])[0]
            self.grads[id(out)] = seed
        self._back(self.steps)

    def _back(self, steps: list[_TapeStep | _TapeRegion]) -> None:
        for step in reversed(steps):
            gradient = self.grads.pop(id(step.out), None)
            if gradient is None:
                continue
            if isinstance(step, _TapeRegion):
                self._rerun(step, gradient)
            elif step.shares:
                self.touch(gradient)
                for value in step.inputs:
                    if value.grad:
                        self._pass(value, gradient)
            else:
                self._derive(step, gradient)

    def _rerun(self, region: _TapeRegion, gradient: TapeValue) -> None:
        before, self.steps = self.steps, []
        out = region.run(region.inputs)
        self.touch(*region.inputs, gradient)
        mine, self.steps = self.steps, before
        self.grads[id(out)] = gradient
        self._back(mine)

    def _saved(self, step: _TapeStep) -> list[TapeValue]:
        """What the gradient reads of the forward pass; some of it is made again first."""
        reads: list[TapeValue] = []
        for value in step.saves:
            if (self.again or value.remade) and value.sources and value.born[0] == 0:
                sources = self._grounded(value)
                reads += self.emit(
                    "again", "elementwise", sources, [(value.count, value.width, value.power)]
                )
            else:
                reads.append(value)
        return reads

    def _grounded(self, value: TapeValue) -> list[TapeValue]:
        if not value.sources or not (self.again or value.remade):
            return [value]
        return [ground for source in value.sources for ground in self._grounded(source)]

    def _derive(self, step: _TapeStep, gradient: TapeValue) -> None:
        reads = [gradient, *self._saved(step)]
        parameter = step.parameter
        wanted = [v for v in step.inputs if v.grad]
        if step.in_place and wanted:  # the loss turns what it saved into the gradient
            self.emit(f"{step.name}_backward", step.kind, reads, [])
            kept = step.saves[-1]
            kept.last = (1, len(self.rows[1]) - 1)
            self._pass(wanted[0], kept)
            return
        if parameter is not None and parameter.cast and not parameter.cached and wanted:
            self._copy(parameter, reads)
        weighs = parameter is not None and parameter.trainable
        parts = len(wanted) + weighs
        if not parts:
            return
        each = step.macs * step.back_macs / (2 if step.kind == "linear" else max(parts, 1))
        name, weights = f"{step.name}_backward", parameter.count if parameter else 0.0
        if step.split or step.kind == "linear" or weighs:
            for value in wanted:
                made = self.emit(
                    name,
                    step.kind,
                    reads,
                    [(value.count, value.width, 1)],
                    macs=each,
                    weights=weights,
                )
                self._pass(value, made[0])
        elif wanted:
            made = self.emit(
                name,
                step.kind,
                reads,
                [(v.count, v.width, 1) for v in wanted],
                macs=each * len(wanted),
            )
            for value, one in zip(wanted, made, strict=True):
                self._pass(value, one)
        if parameter is not None and weighs:
            self._weigh(step, parameter, reads, each)

    def _weigh(
        self, step: _TapeStep, parameter: TapeWeight, reads: list[TapeValue], macs: float
    ) -> None:
        """The gradient of a weight: in the type of the product first, then as it is kept."""
        kept = self.gradient_width(parameter)
        width = parameter.cast or parameter.width
        name = f"{step.name}_weight_backward"
        made = self.emit(name, step.kind, reads, [(parameter.count, width, 0)], macs=macs)[0]
        made.role = ROLES.index("transient")
        if self.accumulate or parameter.merge:
            self.emit("accumulate", "elementwise", [made], [], weights=parameter.count)
            return
        if width != kept:
            made = self.emit("cast", "copy", [made], [(parameter.count, kept, 0)])[0]
        made.role = ROLES.index("gradient")
        made.lasts = True

    def _pass(self, value: TapeValue, gradient: TapeValue) -> None:
        """A gradient arrives; a second one is added to the first."""
        first = self.grads.get(id(value))
        if first is not None and first is not gradient:
            gradient = self.emit(
                "add", "elementwise", [first, gradient], [(value.count, value.width, 1)]
            )[0]
        self.grads[id(value)] = gradient
