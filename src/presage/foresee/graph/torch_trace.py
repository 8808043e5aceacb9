"""A PyTorch module to an `OpGraph`: forward, backward and optimizer step on tensors without data.

The step really runs, on fake tensors: the operators PyTorch dispatches are written down, and a
storage dies when PyTorch lets go of it. The batch is a large prime, so a size shows by its
divisibility how it depends on the batch (ADR 0012). No weights are allocated and no GPU is needed.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from presage.foresee.graph._torch_patches import (
    attention,
    checkpoint_blocks,
    sparse_embeddings,
    uncompiled,
    where,
)
from presage.foresee.graph.compiled import without_recomputable
from presage.foresee.graph.operators import kind_of, macs_of
from presage.foresee.graph.opgraph import KINDS, PHASES, ROLES, InputSpec, OpGraph, Tensors
from presage.foresee.graph.updates import update_storages, update_traffic
from presage.model.errors import GraphError
from presage.model.optimizers import OPTIMIZER_TABLE, optimizer_memory

__all__ = ["PRECISIONS", "trace"]

PRIME = 1009
_BATCHES = (PRIME, 8 * PRIME)  # some models want a batch they can divide
PRECISIONS = ("fp32", "tf32", "amp", "amp-bf16", "bf16", "fp16", "fp8")
_OTHER_SPELLINGS = {"amp_bf16": "amp-bf16", "amp-fp16": "amp", "amp_fp16": "amp"}
ATTENTIONS = ("eager", "sdpa", "flash")
CHECKPOINTS = ("none", "selective", "full")
_AS_WORD = {True: "full", False: "none"}

_FREE = frozenset(
    [
        "detach",
        "alias",
        "lift_fresh",
        "lift_fresh_copy",
        "_local_scalar_dense",
        "device",
        "empty",
        "sym_size",
        "is_same_size",
        "record_stream",
        "_record_function_enter_new",
        "_record_function_exit",
        "_reshape_alias",
        "view",
    ]
)

_ABOUT_INPUTS = ("shape", "size", "dim", "mat1", "expected", "positional argument")
"""Words of errors that a wrong input leads to."""


def trace(
    build: Callable[[], Any] | Any,
    inputs: Sequence[InputSpec],
    *,
    name: str = "model",
    optimizer: str = "sgd",
    precision: str = "fp32",
    inference: bool = False,
    accumulate: int | bool = False,
    checkpointing: str | bool = False,
    attention: str = "sdpa",
    layout: str = "nchw",
    compile: bool = False,
) -> OpGraph:
    """The graph of a module, or of what a function without arguments builds.

    `accumulate`: gradients stay between steps (True, or micro-batches above 1). `checkpointing`:
    repeated blocks are computed again in the backward pass instead of kept: True or `full` for
    all, `selective` for every other one. `attention`: `eager` writes scores out, the others run
    one fused operator. `compile` and `layout` are noted for those who read the graph.
    """
    precision = _OTHER_SPELLINGS.get(precision, precision)
    again = checkpointing if isinstance(checkpointing, str) else _AS_WORD[checkpointing]
    _known("optimizer", optimizer_memory(optimizer).name, OPTIMIZER_TABLE)
    _known("precision", precision, PRECISIONS)
    _known("attention", attention, ATTENTIONS)
    _known("checkpointing", again, CHECKPOINTS)
    _known("layout", layout, ("nchw", "nhwc"))
    options: dict[str, Any] = {
        "optimizer": "none" if inference else optimizer_memory(optimizer).name,
        "precision": precision,
        "inference": inference,
        "accumulate": int(accumulate) > 1 or accumulate is True,
        "checkpointing": again != "none",
    }
    if again == "selective":
        options["checkpoint"] = again
    options |= {"attention": attention} if attention != "sdpa" else {}
    options |= {"layout": layout} if layout != "nchw" else {}
    options |= {"compile": True} if compile else {}
    failure: GraphError | None = None
    for batch in _BATCHES:
        tracer = _Tracer(batch, name, dict(options))
        try:
            return tracer.run(build, inputs)
        except GraphError:
            raise
        except Exception as error:  # whatever the user's module raises
            failure = failure or _explain(error, inputs, tracer.inside)
            failure.__cause__ = failure.__cause__ or error
    assert failure is not None
    raise failure


def _known(what: str, value: str, choices: Iterable[str]) -> None:
    if value not in choices:
        raise GraphError(f"unknown {what} '{value}': one of {', '.join(choices)}")


def _explain(error: Exception, inputs: Sequence[InputSpec], inside: Sequence[str]) -> GraphError:
    kind = type(error).__name__
    line = (str(error).strip().splitlines() or ["no message"])[0][:200]
    place = f" in {inside[-1]}" if len(inside) > 1 else ""
    if "DataDependent" in kind or "DynamicOutputShape" in kind or "UnbackedSymbol" in line:
        return GraphError(
            f"the model decides by the values of its data{place} ({line}): a graph needs shapes "
            "only; give a variant of the model without that branch"
        )
    if any(word in line.lower() for word in _ABOUT_INPUTS):
        shapes = ", ".join(map(str, inputs)) or "none"
        return GraphError(f"the model does not take the input {shapes}: {kind}{place}: {line}")
    return GraphError(f"the model failed while it was traced{place}: {kind}: {line}")


class _Tracer:
    """One run of one step on fake tensors."""

    def __init__(self, batch: int, name: str, options: dict[str, Any]) -> None:
        self.batch = batch
        self.name = name
        self.options = options
        self.phase = 0
        self.rows: list[tuple[Any, ...]] = []
        self.edges: dict[tuple[int, int], None] = {}
        self.last: dict[int, int] = {}  # storage -> operator that wrote it last
        self.storages: dict[int, list[Any]] = {}  # serial -> [born, died, scale, power, role]
        self.alive: dict[int, tuple[int, Any]] = {}  # id of storage -> serial, weak reference
        self.weights: dict[int, int] = {}  # id of storage -> elements
        self.notes: list[str] = []
        self.inside: list[str] = []  # modules under way
        self.sparse: dict[int, list[int]] = {}  # id of a table -> elements that were looked up

    def run(self, build: Any, inputs: Sequence[InputSpec]) -> OpGraph:
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode

        FakeTensorMode.cache_clear()  # a result from it shares no storages: traces would differ
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, _quiet():
            module = _without_data(torch, mode, build, _dtype(torch, self.options["precision"]))
            module.train(not self.options["inference"])
            module = self._prepared(torch, module)
            params = {id(p): p for p in module.parameters()}
            trainable = [p for p in params.values() if p.requires_grad]
            for tensor in params.values():
                self._keep(tensor, "weight")
                self.weights[id(tensor.untyped_storage())] = tensor.numel()
            for tensor in module.buffers():
                self._keep(tensor, "buffer")
            data = [self._make(torch, spec) for spec in inputs]
            for tensor in data:
                self._keep(tensor, "input")
            with where(torch, module) as self.inside:
                self._step(torch, module, data, trainable)
            count = sum(p.numel() for p in params.values())
            learned = sum(p.numel() for p in trainable)
        graph = self._graph(inputs, count, 0 if self.options["inference"] else learned)
        return without_recomputable(graph) if self.options.get("compile") else graph

    def _prepared(self, torch: Any, module: Any) -> Any:
        """The module as it can be traced; what is approximate is noted."""
        module, compiled = uncompiled(module)
        if compiled or self.options.get("compile"):
            self.options["compile"] = True
            self.notes.append(
                "torch.compile: traced as eager; what it computes again instead of keeping is "
                "an estimate"
            )
        for part in sparse_embeddings(torch, module):
            looked_up = self.sparse.setdefault(id(part.weight), [])
            part.register_forward_hook(
                lambda _m, _a, out, kept=looked_up: kept.append(_first(torch, out).numel())
            )
            self.notes.append("sparse gradients of an embedding: one row for each token")
        if self.options["checkpointing"]:
            every = 2 if self.options.get("checkpoint") == "selective" else 1
            if not checkpoint_blocks(module, every):
                self.notes.append("checkpointing: the model has no list of like blocks to repeat")
        if self.options["precision"] == "fp8":
            self.notes.append("fp8: weights, gradients and activations are taken as bf16")
        entry = optimizer_memory(self.options["optimizer"])
        if entry.paged:
            self.notes.append("paged optimizer state leaves the GPU when it is full: not counted")
        return module

    def _make(self, torch: Any, spec: InputSpec) -> Any:
        shape = (self.batch, *spec.shape)
        dtype = getattr(torch, spec.dtype)
        if dtype.is_floating_point:
            dtype = _dtype(torch, self.options["precision"]) or dtype
        return torch.zeros(shape, dtype=dtype)

    def _step(self, torch: Any, module: Any, data: list[Any], trainable: list[Any]) -> None:
        half = {"amp": torch.float16, "amp-bf16": torch.bfloat16}.get(self.options["precision"])
        cast = torch.autocast("cpu", half) if half is not None else contextlib.nullcontext()
        kernel = attention(torch, half, self.options.get("attention", "sdpa"))
        if self.options["inference"]:
            with torch.no_grad(), kernel, self._recording(torch), cast:
                out = module(*data)
            del out
            return
        if not trainable:
            raise GraphError("no parameter of the model is trainable: add --inference")
        with self._recording(torch), kernel:
            with cast:
                out = module(*data)
                loss = _loss(torch, out)
            if loss is None or not loss.requires_grad:
                raise GraphError("the model returns nothing that can be trained on")
            self.phase = 1
            # Not loss.backward() nor torch.autograd.backward: modes rest inside both, and what is
            # computed again in the backward pass would differ from what was computed.
            torch.autograd.graph._engine_run_backward(
                *((loss,), (torch.ones_like(loss),), False, False, ()),
                allow_unreachable=True,
                accumulate_grad=True,
            )
        for p in trainable:
            if p.grad is not None:
                self._mark(p.grad, "gradient")
                self._thin(p)
        self._update(trainable)

    # -- recording

    @contextlib.contextmanager
    def _recording(self, torch: Any) -> Iterator[None]:
        from torch.utils._python_dispatch import TorchDispatchMode

        tracer = self

        class OperatorRecorder(TorchDispatchMode):  # type: ignore[misc]
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                out = func(*args, **(kwargs or {}))
                tracer._note(torch, func, args, kwargs or {}, out)
                return out

        with OperatorRecorder():
            yield

    def _note(self, torch: Any, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        name = func._schema.name.split("::")[-1]
        if name in _FREE:
            return
        given = list(_tensors(torch, (args, kwargs)))
        made = list(_tensors(torch, out))
        fresh = [t for t in made if id(t.untyped_storage()) not in self.alive]
        mutates = func._schema.is_mutable
        if not fresh and not mutates:
            return  # a view
        at = len(self.rows)
        for tensor in fresh:
            self._born(tensor, at, "saved" if self.phase == 0 else "transient")
        results = fresh or made or given[:1]
        first = results[0] if results else None
        shape = tuple(first.shape) if first is not None else ()
        weight, groups, transposed, computes = None, 1, False, 1
        if name == "convolution":
            weight, groups, transposed = tuple(args[1].shape), args[8], args[6]
        elif name == "convolution_backward":
            weight, groups, transposed = tuple(args[2].shape), args[9], args[7]
            computes = sum(args[10][:2])
        shapes = [tuple(t.shape) for t in given]
        macs = macs_of(name, shapes, shape, transposed=transposed, computes=computes)
        kind = kind_of(name, weight, groups)
        weights = 0
        for tensor in given:
            key = id(tensor.untyped_storage())
            weights += self.weights.get(key, 0)
            source = self.last.get(key)
            if source is not None and source != at:
                self.edges[(source, at)] = None
        for tensor in fresh if fresh else results:
            self.last[id(tensor.untyped_storage())] = at
        self.rows.append(
            (
                name.rstrip("_") if name.endswith("_") else name,
                KINDS.index(kind),
                self.phase,
                tuple(self._dim(n) for n in shape),
                str(first.dtype).removeprefix("torch.") if first is not None else "",
                self._poly([macs]),
                self._poly([t.numel() for t in given if t is not None]),
                self._poly([t.numel() for t in results]),
                float(weights),
            )
        )

    def _dim(self, n: int) -> int:
        return -(n // self.batch) if n and n % self.batch == 0 else n

    def _power(self, n: int) -> tuple[float, int]:
        power = 0
        whole = n
        while power < 2 and whole and whole % PRIME == 0:
            whole //= PRIME
            power += 1
        return n / self.batch**power, power

    def _poly(self, sizes: Sequence[int]) -> list[float]:
        out = [0.0, 0.0, 0.0]
        for n in sizes:
            scale, power = self._power(int(n))
            out[power] += scale
        return out

    # -- storages

    def _keep(self, tensor: Any, role: str) -> None:
        if id(tensor.untyped_storage()) not in self.alive:
            self._born(tensor, -1, role)

    def _born(self, tensor: Any, at: int, role: str) -> None:
        storage = tensor.untyped_storage()
        scale, power = self._power(storage.nbytes())
        serial = len(self.storages)
        self.storages[serial] = [at, -2, scale, power, ROLES.index(role)]
        key = id(storage)

        def died(_: Any) -> None:
            self.storages[serial][1] = max(at + 1, len(self.rows))
            self.alive.pop(key, None)
            self.last.pop(key, None)

        self.alive[key] = (serial, weakref.ref(storage, died))

    def _mark(self, tensor: Any, role: str) -> None:
        place = self.alive.get(id(tensor.untyped_storage()))
        if place is not None:
            entry = self.storages[place[0]]
            entry[4] = ROLES.index(role)
            if self.options["accumulate"]:
                entry[0] = -1

    def _thin(self, weight: Any) -> None:
        """A sparse gradient has the rows that were looked up, not the whole table."""
        looked_up = sum(self.sparse.get(id(weight), ()))
        place = self.alive.get(id(weight.grad.untyped_storage()))
        if looked_up and place is not None:
            scale, power = self._power(looked_up * weight.element_size())
            self.storages[place[0]][2:4] = [scale, power]

    def _update(self, trainable: list[Any]) -> None:
        """The optimizer's step, written down from what it is known to do."""
        optimizer = optimizer_memory(self.options["optimizer"])
        numbers = np.array([p.numel() for p in trainable], np.float64)
        sizes = np.array([p.numel() * p.element_size() for p in trainable], np.float64)
        at, total = len(self.rows), float(numbers.sum())
        for read, written in update_traffic(optimizer, total):
            self.rows.append(
                (
                    "optimizer",
                    KINDS.index("update"),
                    PHASES.index("optimizer"),
                    (int(total),),
                    "float32",
                    [0.0, 0.0, 0.0],
                    [read, 0.0, 0.0],
                    [written, 0.0, 0.0],
                    total,
                )
            )
        end = len(self.rows)
        kept, made = update_storages(optimizer, sizes, numbers)
        for size in kept.tolist():
            self._store(-1, end, size, "state")
        for size in made.tolist():
            self._store(at, end, size, "transient")

    def _store(self, born: int, died: int, size: float, role: str) -> None:
        self.storages[len(self.storages)] = [born, died, float(size), 0, ROLES.index(role)]

    def _graph(self, inputs: Sequence[InputSpec], params: int, trainable: int) -> OpGraph:
        count = len(self.rows)
        table = list(self.storages.values())
        dead = np.array([row[1] for row in table], np.int64)
        dead[dead == -2] = count
        columns = list(zip(*self.rows, strict=True)) if self.rows else [()] * 9
        return OpGraph(
            name=self.name,
            operators=tuple(columns[0]),
            kind=np.array(columns[1], np.int64),
            phase=np.array(columns[2], np.int64),
            shapes=tuple(columns[3]),
            dtypes=tuple(columns[4]),
            macs=np.array(columns[5], np.float64).reshape(count, 3),
            read=np.array(columns[6], np.float64).reshape(count, 3),
            written=np.array(columns[7], np.float64).reshape(count, 3),
            weights=np.array(columns[8], np.float64),
            edges=np.array(list(self.edges), np.int64).reshape(-1, 2),
            tensors=Tensors(
                born=np.array([row[0] for row in table], np.int64),
                died=dead,
                scale=np.array([row[2] for row in table], np.float64),
                power=np.array([row[3] for row in table], np.int64),
                role=np.array([row[4] for row in table], np.int64),
            ),
            params=params,
            trainable=trainable,
            inputs=tuple(inputs),
            options=self.options,
            notes=tuple(self.notes),
        )


def _without_data(torch: Any, mode: Any, build: Any, dtype: Any) -> Any:
    """A module whose tensors have shapes and no values, from a module or a function; parameters
    and buffers with fractions become `dtype`, if there is one."""
    from torch._subclasses.fake_tensor import FakeCopyMode, unset_fake_temporarily

    if isinstance(build, torch.nn.Module):
        with FakeCopyMode(mode):
            module = copy.deepcopy(build)
    else:
        with unset_fake_temporarily():
            try:
                with torch.device("meta"):
                    module = build()
            except (NotImplementedError, RuntimeError, TypeError):
                module = build()  # it looks at values while it is built
    if not isinstance(module, torch.nn.Module):
        raise GraphError(f"the factory returned a {type(module).__name__}, not a torch module")
    made: dict[int, Any] = {}
    for part in module.modules():
        for place in (part._parameters, part._buffers, part.__dict__):
            wanted = None if place is part.__dict__ else dtype
            for key, value in list(place.items()):
                if isinstance(value, torch.Tensor):
                    if id(value) not in made:
                        made[id(value)] = (value, _shell(torch, value, wanted))
                    place[key] = made[id(value)][1]
    return module


def _shell(torch: Any, tensor: Any, dtype: Any) -> Any:
    """A tensor of that shape without values; one without fractions keeps its type."""
    wanted = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=wanted, device="cpu")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def _tensors(torch: Any, value: Any) -> Iterator[Any]:
    """Tensors in nested arguments, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(torch, part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(torch, part)


def _first(torch: Any, out: Any) -> Any:
    return next(_tensors(torch, out))


def _leaves(torch: Any, out: Any) -> list[Any]:
    if hasattr(out, "to_tuple"):  # a Hugging Face output
        out = out.to_tuple()
    return [t for t in _tensors(torch, out) if t.is_floating_point()]


def _loss(torch: Any, out: Any) -> Any:
    """A number to train on: cross entropy over the classes of a batch of scores or of a sequence
    of them, otherwise the mean of everything that was returned."""
    outputs = [t for t in _leaves(torch, out) if t.requires_grad]
    if not outputs:
        return None
    if outputs[0].dim() == 0:
        return outputs[0]
    if len(outputs) == 1 and outputs[0].dim() in (2, 3) and outputs[0].shape[-1] > 1:
        scores = outputs[0].reshape(-1, outputs[0].shape[-1])
        target = torch.zeros(scores.shape[0], dtype=torch.int64)
        return torch.nn.functional.cross_entropy(scores, target)
    return sum(t.float().mean() for t in outputs)


def _dtype(torch: Any, precision: str) -> Any:
    """What all numbers with fractions are in a pure precision; None if they stay as they are."""
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
    return kinds.get(precision)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
