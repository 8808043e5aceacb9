"""The step of a decoder language model on its busiest rank, without PyTorch: an `OpGraph` from a
shape and a set-up.

A layer is written down once (`_decoder_blocks`), and repeated; the update, the optimizer's state
and what micro-batches in flight keep are added. What data-parallel ranks share among them is done
by `presage.foresee.sharding` at the end. Nothing here knows a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.foresee.graph._decoder_blocks import DecoderBlocks, ElementWidths
from presage.foresee.graph._tape import Tape, TapeValue, TapeWeight
from presage.foresee.graph.decoders import DecoderShape
from presage.foresee.graph.opgraph import KINDS, ROLES, Floats, InputSpec, Ints, OpGraph, Tensors
from presage.foresee.sharding import ShardUnit, shard
from presage.model.optimizers import OptimizerMemory, optimizer_memory
from presage.model.setup import Setup

__all__ = ["busiest_graph", "decoder_graph", "decoder_length"]

_LENGTH = 2048


def decoder_length(shape: DecoderShape, setup: Setup) -> int:
    """Tokens of a sample: what was asked, else 2,048 or what the model allows."""
    return setup.seq or min(_LENGTH, shape.longest)


def busiest_graph(shape: DecoderShape, setup: Setup, batch: float = 1.0) -> OpGraph:
    """The graph of the pipeline stage that needs the most memory at a batch."""
    from presage.foresee.allocator import live_peak

    last = setup.parallel.pipeline - 1
    stages = sorted({0, min(1, last), last})
    graphs = [decoder_graph(shape, setup, stage=stage) for stage in stages]
    return max(graphs, key=lambda graph: live_peak(graph, batch).bytes)


def decoder_graph(shape: DecoderShape, setup: Setup, *, stage: int = 0) -> OpGraph:
    """One micro-batch forward and backward, and the update, on a rank of a pipeline stage."""
    setup.check_for(shape)
    return _DecoderAssembly(shape, _as_trained(setup), stage).graph()


def _as_trained(setup: Setup) -> Setup:
    """fp16 over quantised weights is autocast, with the rest in fp32: gradients in fp16 cannot be
    scaled, so frameworks refuse them."""
    if setup.quant != "none" and setup.precision == "fp16" and not setup.inference:
        return replace(setup, precision="amp")
    return setup


@dataclass(slots=True)
class _BlockTemplate:
    """A block on a tape, as arrays."""

    tape: Tape
    times: int
    forward: int
    backward: int


@dataclass(frozen=True, slots=True)
class _KeptBytes:
    """Bytes that a trained parameter takes beside its weight."""

    gradient: float
    resident: bool
    """The gradient stays between micro-batches."""
    copied: float
    """Of a second gradient in fp32, there in the update alone."""
    master: float
    value: float
    """Bytes of one value of the optimizer's state."""


class _DecoderAssembly:
    def __init__(self, shape: DecoderShape, setup: Setup, stage: int) -> None:
        self.shape, self.setup, self.stage = shape, setup, stage
        p = setup.parallel
        self.first, self.last = stage == 0, stage == p.pipeline - 1
        self.seq = decoder_length(shape, setup)
        gathered = setup.autocast and p.sharding in ("fsdp", "zero3")
        self.widths = ElementWidths.of(setup, gathered=gathered)
        self.stored = 4.0 if setup.autocast else self.widths.weight
        self.tied = shape.tied and self.first and self.last
        self.kept = self._kept()
        self.templates: list[_BlockTemplate] = []

    def _kept(self) -> _KeptBytes:
        setup = self.setup
        several = setup.accumulate > 1 or setup.parallel.pipeline > 1
        if setup.master_weights:
            split = setup.parallel.tensor > 1 or setup.parallel.pipeline > 1
            if split and setup.precision != "fp16":  # Megatron adds up in fp32, and steps on that
                return _KeptBytes(4.0, True, 0.0, 4.0, 4.0)
            return _KeptBytes(
                2.0, True, 4.0, 4.0, 4.0
            )  # DeepSpeed steps on an fp32 copy of its part
        width = 4.0 if setup.autocast else self.widths.weight
        return _KeptBytes(width, several, 0.0, 0.0, width)

    # -- blocks

    def _tape(self) -> Tape:
        setup, kept = self.setup, self.kept
        return Tape(
            again=setup.compile or setup.checkpoint == "selective",
            accumulate=kept.resident,
            gradient_width=lambda p: max(kept.gradient, p.width) if p.trainable else 0.0,
            learning=not setup.inference,
        )

    def _block(
        self, times: int, build: Callable[[DecoderBlocks, TapeValue], TapeValue], kind: str
    ) -> None:
        if times < 1:
            return
        setup, t = self.setup, self._tape()
        blocks = DecoderBlocks(self.shape, setup, self.seq, t, self.widths, self.tied)
        wide = self.stored if setup.autocast else self.widths.compute
        count = blocks.tokens * self.shape.width / blocks.split
        if kind == "embedding":
            out = blocks.embedding()
        else:
            x = t.given(count, wide)
            if setup.checkpoint == "full" and kind == "layer" and t.learning:
                out = self._checkpointed(blocks, x, build)
            else:
                out = build(blocks, x)
            t.touch(x)
        if t.learning:
            loss = kind == "head"
            dy = None if loss else t.given(out.count, out.width, segment=1)
            t.backward(out, dy)
            if dy is not None:
                t.touch(dy)
        self.templates.append(_BlockTemplate(t, times, len(t.rows[0]), len(t.rows[1])))

    def _checkpointed(
        self,
        blocks: DecoderBlocks,
        x: TapeValue,
        build: Callable[[DecoderBlocks, TapeValue], TapeValue],
    ) -> TapeValue:
        t = blocks.tape
        known: list[TapeWeight] = []

        def run(inputs: tuple[TapeValue, ...]) -> TapeValue:
            if not known:
                out = build(blocks, inputs[0])
                known.extend(t.parameters)
                return out
            mark = len(t.parameters)
            out = build(blocks, inputs[0])
            del t.parameters[mark:]  # the same weights, met again
            return out

        return t.region(run, (x,))

    def _layers(self) -> list[tuple[bool, bool, int]]:
        """(experts, windowed, how many) of this stage."""
        s, p = self.shape, self.setup.parallel
        share, more = divmod(s.layers, p.pipeline)
        start = self.stage * share + min(self.stage, more)
        mine = range(start, start + share + (self.stage < more))
        near = round(len(mine) * s.windowed_layers / s.layers)
        counts: dict[tuple[bool, bool], int] = {}
        for place, layer in enumerate(mine):
            key = (bool(s.experts) and layer >= s.dense_layers, place < near)
            counts[key] = counts.get(key, 0) + 1
        return [(e, w, n) for (e, w), n in counts.items()]

    # -- the whole

    def graph(self) -> OpGraph:
        s = self.shape
        if self.first:
            self._block(1, lambda b, _: b.embedding(), "embedding")
        for experts, windowed, times in self._layers():
            window = s.window if windowed else 0
            self._block(
                times,
                lambda b, x, e=experts, w=window: b.layer(x, experts=e, window=w),  # type: ignore[misc]
                "layer",
            )
        if self.last:
            self._block(1, lambda b, x: b.head(x), "head")
        return self._assemble()

    def _assemble(self) -> OpGraph:
        setup = self.setup
        places = self._places()
        forward = sum(t.forward * t.times for t in self.templates)
        count = forward + sum(t.backward * t.times for t in self.templates)
        memory = optimizer_memory("none" if setup.inference else setup.optimizer)
        rows = self._rows(memory)
        store = _TensorStore(count + memory.passes)
        for template, (starts, backs) in zip(self.templates, places, strict=True):
            self._lives(store, template, starts, backs)
        weights = self._lasting(store)
        self._update(store, count, memory)
        self._in_flight(store, forward)
        self._held_inputs(store, forward)
        tensors = store.tensors()
        graph = OpGraph(
            name=self.shape.name,
            operators=tuple(rows.names),
            kind=rows.column("kind").astype(np.int64),
            phase=np.array(rows.phases, np.int64),
            shapes=tuple(rows.shapes),
            dtypes=tuple(rows.dtypes),
            macs=_poly(rows.column("macs")),
            read=_poly(rows.column("read"), rows.column("read_once")),
            written=_poly(rows.column("written"), rows.column("written_once")),
            weights=rows.column("weights"),
            edges=self._edges(places),
            tensors=tensors,
            params=round(weights[0]),
            trainable=round(weights[1]),
            inputs=(InputSpec((self.seq,), "int64", self.shape.vocabulary),),
            options=self._options(),
            notes=self._notes(),
        )
        return shard(graph, setup, self._units(places, forward))

    def _places(self) -> list[tuple[Ints, Ints]]:
        """Where each repetition of each template starts: forward, backward."""
        at = 0
        starts: list[Ints] = []
        for t in self.templates:
            starts.append(at + t.forward * np.arange(t.times, dtype=np.int64))
            at += t.forward * t.times
        backs: list[Ints] = [np.zeros(0, np.int64)] * len(self.templates)
        for i in range(len(self.templates) - 1, -1, -1):
            t = self.templates[i]
            backs[i] = at + t.backward * np.arange(t.times - 1, -1, -1, dtype=np.int64)
            at += t.backward * t.times
        return list(zip(starts, backs, strict=True))

    def _rows(self, memory: OptimizerMemory) -> _OperatorRows:
        """Operators in the order they run."""
        order = [(t, 0) for t in self.templates] + [(t, 1) for t in reversed(self.templates)]
        rows = _OperatorRows()
        tokens = max(1, round(self.seq / self.setup.parallel.context))
        for template, segment in order:
            here = template.tape.rows[segment]
            rows.add(
                template.times,
                segment,
                [row.name for row in here],
                [_shape(row.written, row.last, tokens) for row in here],
                [self._dtype(row.width, row.kind) for row in here],
                {key: [getattr(row, key) for row in here] for key in _OperatorRows.KEYS},
            )
        trained = sum(
            p.count * t.times for t in self.templates for p in t.tape.parameters if p.trainable
        )
        update = {key: [0.0] for key in _OperatorRows.KEYS} | {
            "kind": [KINDS.index("update")],
            "weights": [trained],
            "read_once": [trained * (1 + (memory.values > 0))],
            "written_once": [trained],
        }
        rows.add(memory.passes, 2, ["optimizer"], [(round(trained),)], ["float32"], update)
        return rows

    def _dtype(self, width: float, kind: int) -> str:
        if width > 2:
            return "float32"
        if self.setup.precision == "fp8" and KINDS[kind] == "linear":
            return "float8_e4m3fn"
        return "float16" if self.setup.precision in ("fp16", "amp") else "bfloat16"

    def _lives(
        self, store: _TensorStore, template: _BlockTemplate, starts: Ints, backs: Ints
    ) -> None:
        """The values of a template, once for every repetition."""
        values = [v for v in template.tape.values if v.count > 0]
        if not values:
            return
        offset = np.stack([starts, backs])
        seg = np.array([(v.born[0], v.last[0]) for v in values])
        idx = np.array([(v.born[1], v.last[1]) for v in values])
        born = offset[seg[:, 0]] + idx[:, :1]
        died = offset[seg[:, 1]] + idx[:, 1:] + 1
        lasts = np.array([v.lasts for v in values])
        died[lasts] = store.end
        kept = (seg[:, 0] == 0) & (seg[:, 1] == 1)
        role = np.where(kept, ROLES.index("saved"), ROLES.index("transient"))
        given = np.array([v.role for v in values])
        role = np.where(given >= 0, given, role)
        scale = np.array([v.count * v.width for v in values])
        power = np.array([v.power for v in values])
        times = template.times
        store.add(
            np.maximum(born, -1).ravel(),
            died.ravel(),
            np.repeat(scale, times),
            np.repeat(power, times),
            np.repeat(role, times),
        )

    def _lasting(self, store: _TensorStore) -> tuple[float, float]:
        """Weights, and gradients that stay between micro-batches; (all, trained) elements."""
        all_, trained = 0.0, 0.0
        kept = self.kept
        plain = self.widths.weight
        for template in self.templates:
            for p in template.tape.parameters:
                times = template.times
                trained += 0 if p.alias or not p.trainable else p.count * times
                if not p.alias:
                    all_ += p.count * times
                    width = self.stored if p.width == plain else p.width
                    store.lasting(p.count * width, times, "weight")
                learns = p.trainable and not self.setup.inference and not p.merge
                if learns and kept.resident:
                    wide = max(kept.gradient, p.width)
                    store.lasting(p.count * wide, times, "gradient")
        rotary = 2 * self.seq * self.shape.query_size * 4.0
        store.lasting(rotary if self.shape.rotary else 0.0, 1, "buffer")
        return all_, trained

    def _update(self, store: _TensorStore, count: int, memory: OptimizerMemory) -> None:
        """State and temporaries of the optimizer."""
        setup, kept = self.setup, self.kept
        if setup.inference:
            return
        largest = 0.0
        away = setup.offload in ("optimizer", "params") or memory.paged
        for template in self.templates:
            for p in template.tape.parameters:
                if not p.trainable or p.alias:
                    continue
                value = max(kept.value, p.width)
                largest = max(largest, p.count)
                if not away:
                    store.during(count, p.count * kept.copied, template.times)
                    if kept.master:
                        store.lasting(p.count * kept.master, template.times, "state")
                    for _ in range(int(memory.values)):
                        store.lasting(p.count * value, template.times, "state")
                    store.lasting(p.count * memory.fixed_bytes, template.times, "state")
                    for _ in range(int(memory.foreach_values)):
                        if not setup.master_weights:  # their optimizers are fused
                            store.during(count, p.count * value, template.times)
        store.during(count, largest * 4 * memory.largest_values, 1)

    def _in_flight(self, store: _TensorStore, forward: int) -> None:
        """What other micro-batches of the pipeline keep while this one is at work (1F1B)."""
        setup = self.setup
        stages = setup.parallel.pipeline
        if stages == 1 or setup.inference:
            return
        deep = float(stages - self.stage)
        chunks = setup.parallel.interleave
        if chunks > 1:  # interleaved schedule: Narayanan et al. 2021, section 2.2
            deep = stages - self.stage + (stages - 1) * (chunks - 1) / chunks
        deep = min(deep, float(setup.accumulate))
        saved = store.alive_between(forward)
        if deep > 1 and saved > 0:
            store.add_one(-1, store.end, saved * (deep - 1), 1, "saved")

    def _held_inputs(self, store: _TensorStore, forward: int) -> None:
        """bitsandbytes keeps the inputs of its products on the graph itself, where a backward
        pass does not free them; a loop that holds its last loss or logits while the next forward
        pass runs has them twice."""
        setup = self.setup
        if setup.quant == "none" or setup.checkpoint == "full" or setup.inference:
            return
        for template in self.templates:
            inputs = {id(v): v for v in template.tape.held}.values()
            size = sum(v.count * v.width for v in inputs)
            for _ in range(template.times):
                store.add_one(-1, forward, size, 1, "saved")

    def _units(self, places: list[tuple[Ints, Ints]], forward: int) -> list[ShardUnit]:
        """Layers as they are gathered one by one; the rest is one unit that stays."""
        units: list[ShardUnit] = []
        whole = [0.0, 0.0]
        for template, (starts, backs) in zip(self.templates, places, strict=True):
            params = [p for p in template.tape.parameters if not p.alias]
            bytes_ = sum(p.count * p.width for p in params)
            grads = sum(p.count * (p.cast if p.cached else p.width) for p in params if p.trainable)
            if template.times == 1 and template.forward < 40 and len(self.templates) > 1:
                whole[0] += bytes_
                whole[1] += grads
                continue
            for start, back in zip(starts.tolist(), backs.tolist(), strict=True):
                units.append(
                    ShardUnit(
                        start,
                        start + template.forward,
                        back,
                        back + template.backward,
                        bytes_,
                        grads,
                    )
                )
        units.append(ShardUnit(0, forward, forward, _operators(self.templates), *whole))
        return units

    def _edges(self, places: list[tuple[Ints, Ints]]) -> Ints:
        parts: list[Ints] = []
        for template, (starts, backs) in zip(self.templates, places, strict=True):
            if not template.tape.edges:
                continue
            offset = np.stack([starts, backs])
            pairs = np.array(template.tape.edges, np.int64)  # (edges, 2, 2)
            ends = offset[pairs[:, :, 0]] + pairs[:, :, 1:]  # (edges, 2, times)
            parts.append(ends.transpose(0, 2, 1).reshape(-1, 2))
        edges = np.concatenate(parts) if parts else np.zeros((0, 2), np.int64)
        return np.unique(edges[edges[:, 0] >= 0], axis=0)

    def _options(self) -> dict[str, Any]:
        setup = self.setup
        return {
            "optimizer": "none" if setup.inference else setup.optimizer,
            "precision": setup.precision,
            "inference": setup.inference,
            "accumulate": setup.accumulate,
            "checkpointing": setup.checkpoint,
            "attention": setup.attention,
            "parallel": str(setup.parallel),
            "stage": self.stage,
            "seq": self.seq,
        }

    def _notes(self) -> tuple[str, ...]:
        notes = []
        if self.shape.experts:
            notes.append("tokens are taken to spread evenly over experts")
        if self.setup.precision == "fp8":
            notes.append("fp8 is taken to keep activations in bf16")
        if self.shape.layers % self.setup.parallel.pipeline:
            notes.append("layers do not divide by the stages: some have one more")
        return tuple(notes)


def _operators(templates: Sequence[_BlockTemplate]) -> int:
    """Operators forward and backward."""
    return sum((t.forward + t.backward) * t.times for t in templates)


class _TensorStore:
    """Tensors as they are collected."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.parts: list[tuple[npt.NDArray[Any], ...]] = []

    def add(
        self,
        born: npt.NDArray[Any],
        died: npt.NDArray[Any],
        scale: npt.NDArray[Any],
        power: npt.NDArray[Any],
        role: npt.NDArray[Any],
    ) -> None:
        self.parts.append((born, died, scale, power, role))

    def add_one(self, born: int, died: int, scale: float, power: int, role: str) -> None:
        self._many(born, died, scale, 1, role, power)

    def lasting(self, scale: float, times: int, role: str) -> None:
        self._many(-1, self.end, scale, times, role, 0)

    def during(self, born: int, scale: float, times: int) -> None:
        """There in the update alone."""
        self._many(born, self.end, scale, times, "transient", 0)

    def _many(self, born: int, died: int, scale: float, times: int, role: str, power: int) -> None:
        if scale <= 0:
            return
        full = np.full
        self.add(
            full(times, born),
            full(times, died),
            full(times, scale),
            full(times, power),
            full(times, ROLES.index(role)),
        )

    def alive_between(self, forward: int) -> float:
        """Bytes a sample that live from the forward into the backward pass."""
        total = 0.0
        for born, died, scale, power, _ in self.parts:
            here = (born < forward) & (died > forward) & (power == 1) & (born >= 0)
            total += float(scale[here].sum())
        return total

    def tensors(self) -> Tensors:
        born, died, scale, power, role = (
            np.concatenate([part[i] for part in self.parts]) for i in range(5)
        )
        return Tensors(
            born.astype(np.int64),
            died.astype(np.int64),
            scale.astype(np.float64),
            power.astype(np.int64),
            role.astype(np.int64),
        )


class _OperatorRows:
    """Operators as they are collected."""

    KEYS = ("kind", "macs", "read", "written", "weights", "read_once", "written_once")

    def __init__(self) -> None:
        self.names: list[str] = []
        self.phases: list[int] = []
        self.shapes: list[tuple[int, ...]] = []
        self.dtypes: list[str] = []
        self.columns: dict[str, list[Floats]] = {key: [] for key in self.KEYS}

    def add(
        self,
        times: int,
        phase: int,
        names: list[str],
        shapes: list[tuple[int, ...]],
        dtypes: list[str],
        columns: dict[str, list[float]],
    ) -> None:
        """The same operators so many times."""
        self.names += names * times
        self.phases += [phase] * (len(names) * times)
        self.shapes += shapes * times
        self.dtypes += dtypes * times
        for key, values in columns.items():
            self.columns[key].append(np.tile(np.array(values, np.float64), times))

    def column(self, key: str) -> Floats:
        joined: Floats = np.concatenate(self.columns[key])
        return joined


def _poly(column: Floats, once: Floats | None = None) -> Floats:
    out = np.zeros((len(column), 3))
    out[:, 1] = column
    if once is not None:
        out[:, 0] = once
    return out


def _shape(written: float, last: float, tokens: int) -> tuple[int, ...]:
    inner = round(last) if last else max(1, round(written / tokens))
    return (-max(1, round(written / inner)), inner) if written else (inner,)
