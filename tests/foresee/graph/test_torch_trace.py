"""Traces of small modules against sizes worked out by hand, and errors of one line."""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from presage.foresee.allocator import live_peak
from presage.foresee.graph import torch_trace
from presage.foresee.graph.opgraph import KINDS, PHASES, ROLES, InputSpec, OpGraph
from presage.foresee.graph.torch_trace import trace
from presage.model.errors import GraphError, UserError


class Module(nn.Module):  # type: ignore[misc]  # PyTorch's types are not looked at
    """What the modules here are."""


FLAT = [InputSpec((8,))]
MLP_PARAMS = 8 * 16 + 16 + 16 * 4 + 4


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    """PyTorch logs a wrong shape before it raises."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    yield
    logger.disabled = before


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def alive(graph: OpGraph, batch: float, role: str, at: int) -> float:
    """Bytes of a role that are there when an operator begins, or after the last one."""
    t = graph.tensors
    here = (t.born < at) & ((t.died > at) | (t.died == len(graph))) & (t.role == ROLES.index(role))
    return float(t.bytes(batch)[here].sum())


def in_phase(graph: OpGraph, phase: str) -> list[int]:
    return np.flatnonzero(graph.phase == PHASES.index(phase)).tolist()


def macs_in(graph: OpGraph, phase: str, batch: float = 1) -> float:
    return float(graph.at(graph.macs, batch)[in_phase(graph, phase)].sum())


# -- sizes by hand


@pytest.mark.parametrize(
    ("optimizer", "kept", "passes"),
    [("none", 0, 0), ("sgd", 0, 1), ("momentum", 1, 2), ("adam", 2, 6), ("adamw", 2, 6)],
)
def test_a_small_network_by_hand(optimizer: str, kept: int, passes: int) -> None:
    batch = 4
    graph = trace(mlp, FLAT, optimizer=optimizer)
    backward = in_phase(graph, "backward")
    last = backward[-1]
    assert graph.params == graph.trainable == MLP_PARAMS
    assert alive(graph, batch, "weight", 0) == MLP_PARAMS * 4
    assert alive(graph, batch, "input", 0) == batch * 8 * 4
    assert alive(graph, batch, "state", 0) == kept * MLP_PARAMS * 4
    assert alive(graph, batch, "gradient", 0) == 0
    assert alive(graph, batch, "gradient", last + 1) == MLP_PARAMS * 4
    # The ReLU's output, the scores, their log-softmax, the labels (8 bytes each); the loss and
    # the sum of weights it is divided by. What the first layer wrote is gone: ReLU needs it not.
    saved = batch * 4 * (16 + 4 + 4) + batch * 8 + 2 * 4
    assert alive(graph, batch, "saved", backward[0]) == saved
    assert len(in_phase(graph, "optimizer")) == passes
    assert macs_in(graph, "forward", batch) == batch * (8 * 16 + 16 * 4)
    # No gradient of the input is asked for: the first layer has one product, not two.
    assert macs_in(graph, "backward", batch) == batch * (8 * 16 + 2 * 16 * 4)


def test_one_linear_layer_reads_and_writes_by_hand() -> None:
    graph = trace(lambda: nn.Linear(8, 4), FLAT, inference=True)
    assert graph.operators == ("addmm",)
    assert graph.shapes == ((-1, 4),)
    assert graph.at(graph.read, 4).tolist() == [4 * 8 + 8 * 4 + 4]
    assert graph.at(graph.written, 4).tolist() == [4 * 4]
    assert graph.weights.tolist() == [8 * 4 + 4]


class Mixed(Module):
    """Convolutions, a norm and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16))
        self.mix = nn.MultiheadAttention(16, 4, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        tokens = self.stem(image).relu().flatten(2).transpose(1, 2)
        mixed: torch.Tensor = self.mix(tokens, tokens, tokens, need_weights=False)[0]
        return self.head(mixed.mean(1))


def test_another_prime_gives_the_same_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    image = [InputSpec((3, 12, 12))]
    one = trace(Mixed, image, optimizer="adam")
    monkeypatch.setattr(torch_trace, "PRIME", 1013)
    monkeypatch.setattr(torch_trace, "_BATCHES", (1013, 8 * 1013))
    other = trace(Mixed, image, optimizer="adam")
    assert one.signature() == other.signature()
    for batch in (1, 7, 64):
        assert np.array_equal(one.tensors.bytes(batch), other.tensors.bytes(batch))
        assert np.array_equal(one.at(one.read, batch), other.at(other.read, batch))


def test_what_grows_with_the_square_of_the_batch() -> None:
    class Pairs(Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(8, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = self.embed(x)
            return found @ found.T

    graph = trace(Pairs, FLAT, inference=True)
    assert graph.operators == ("addmm", "mm")
    assert graph.macs.tolist() == [[0, 48, 0], [0, 0, 6]]
    assert graph.shapes[1] == (-1, -1)
    assert graph.tensors.bytes(10).max() == 10 * 10 * 4


def test_a_model_that_divides_its_batch() -> None:
    class Quarters(Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).reshape(4, x.shape[0] // 4, 6).relu()

    graph = trace(Quarters, FLAT, inference=True)
    assert graph.forward_macs() == 48
    assert graph.at(graph.written, 8).tolist() == [48, 48]


@pytest.mark.parametrize(
    ("layer", "expected", "kind"),
    [
        (lambda: nn.Conv2d(8, 16, 3, padding=1), 36 * 16 * 8 * 9, "conv"),
        (lambda: nn.Conv2d(8, 16, 3, padding=1, groups=4), 36 * 16 * 2 * 9, "grouped"),
        (lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8), 36 * 8 * 9, "depthwise"),
        (lambda: nn.Conv2d(8, 16, 1, stride=2), 9 * 16 * 8, "pointwise"),
        (lambda: nn.ConvTranspose2d(8, 4, 2, stride=2), 36 * 8 * 4 * 4, "conv"),
        (lambda: nn.ConvTranspose2d(8, 4, 2, stride=2, groups=2), 36 * 8 * 2 * 4, "grouped"),
    ],
)
def test_convolutions(layer: Callable[[], nn.Module], expected: int, kind: str) -> None:
    """After another layer, so that both gradients are asked for."""

    def net() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 8, 1), layer())

    graph = trace(net, [InputSpec((3, 6, 6))])
    at = [i for i, name in enumerate(graph.operators) if name.startswith("convolution")]
    macs = graph.at(graph.macs, 1)[at].tolist()
    first = 36 * 3 * 8
    assert macs == [first, expected, 2 * expected, first]
    assert KINDS[graph.kind[at[1]]] == KINDS[graph.kind[at[2]]] == kind


def test_attention_is_one_operator() -> None:
    def net() -> nn.Module:
        return nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)

    graph = trace(net, [InputSpec((10, 32))])
    layers = 10 * 32 * (3 * 32 + 32 + 64 + 64)
    product = 4 * 10 * 10 * 8
    assert macs_in(graph, "forward") == layers + 2 * product
    # The input needs no gradient: query, key and value come from one product, which is halved.
    assert macs_in(graph, "backward") == 2 * layers - 10 * 32 * 96 + 5 * product
    assert int((graph.kind == KINDS.index("attention")).sum()) == 2


def test_tied_weights_are_there_once() -> None:
    class Tied(Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 8)
            self.head = nn.Linear(8, 50, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(tokens))

    for build in (Tied, Tied()):
        graph = trace(build, [InputSpec((5,), "int64")], optimizer="adam")
        assert graph.params == 400
        assert alive(graph, 1, "weight", 0) == 1600
        assert alive(graph, 1, "gradient", in_phase(graph, "optimizer")[0]) == 1600
        assert alive(graph, 1, "state", 0) == 3200
        assert alive(graph, 3, "input", 0) == 3 * 5 * 8


def test_operators_and_edges_are_in_order() -> None:
    graph = trace(Mixed, [InputSpec((3, 12, 12))])
    assert (graph.edges[:, 0] < graph.edges[:, 1]).all()
    assert graph.edges.min() >= 0
    assert graph.edges.max() < len(graph)
    assert (np.diff(graph.phase) >= 0).all()
    assert (graph.tensors.died > graph.tensors.born).all()
    assert graph.tensors.died.max() == len(graph)
    assert graph.signature() == trace(Mixed, [InputSpec((3, 12, 12))]).signature()


def test_earlier_traces_change_nothing() -> None:
    """Both biases of a recurrent layer have one gradient, also if PyTorch remembers the call."""

    class Recurrent(Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(8, 16, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)[0]

    first, second = (trace(Recurrent, [InputSpec((5, 8))]) for _ in range(2))
    assert first.signature() == second.signature()
    assert first.forward_macs() == 5 * 4 * 16 * (8 + 16)


# -- what is trained


def frozen() -> nn.Module:
    net = mlp()
    for parameter in net[0].parameters():
        parameter.requires_grad_(False)
    return net


@pytest.mark.parametrize("build", [frozen, frozen()], ids=["factory", "module"])
def test_frozen_parameters_have_no_gradients(build: Any) -> None:
    graph = trace(build, FLAT, optimizer="adam")
    end = in_phase(graph, "optimizer")[0]
    assert (graph.params, graph.trainable) == (MLP_PARAMS, 68)
    assert alive(graph, 4, "weight", 0) == MLP_PARAMS * 4
    assert alive(graph, 4, "gradient", end) == 68 * 4
    assert alive(graph, 4, "state", 0) == 2 * 68 * 4
    assert macs_in(graph, "backward") == 16 * 4  # only the head's weight


class Adapted(Module):
    """A frozen layer with a product of two thin ones beside it."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width)
        self.base.requires_grad_(False)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def test_low_rank_adapters_shrink_gradients_and_states() -> None:
    width, rank, layers = 64, 4, 3
    adapted = trace(
        lambda: nn.Sequential(*(Adapted(width, rank) for _ in range(layers))),
        [InputSpec((width,))],
        optimizer="adam",
    )
    whole = trace(
        lambda: nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))),
        [InputSpec((width,))],
        optimizer="adam",
    )
    learned = layers * 2 * width * rank
    end = in_phase(adapted, "optimizer")[0]
    assert adapted.trainable == learned
    assert alive(adapted, 1, "gradient", end) == learned * 4
    assert alive(adapted, 1, "state", 0) == 2 * learned * 4
    assert adapted.params == whole.params + learned
    assert live_peak(adapted, 1).bytes < live_peak(whole, 1).bytes


# -- options


def wide() -> nn.Module:
    layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)) for _ in range(4)]
    return nn.Sequential(*layers)


WIDE = [InputSpec((64,))]


def test_autocast_shrinks_activations() -> None:
    full, amp = trace(wide, WIDE), trace(wide, WIDE, precision="amp")
    start = {id(g): in_phase(g, "backward")[0] for g in (full, amp)}
    before = alive(full, 4096, "saved", start[id(full)])
    after = alive(amp, 4096, "saved", start[id(amp)])
    assert 0.45 * before < after < 0.75 * before
    assert alive(amp, 1, "weight", 0) == alive(full, 1, "weight", 0)
    assert amp.forward_macs() == full.forward_macs()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("build", [mlp, mlp()], ids=["factory", "module"])
def test_pure_half_precision(build: Any, precision: str) -> None:
    graph = trace(build, FLAT, precision=precision)
    end = in_phase(graph, "optimizer")[0]
    assert alive(graph, 4, "weight", 0) == MLP_PARAMS * 2
    assert alive(graph, 4, "gradient", end) == MLP_PARAMS * 2
    assert alive(graph, 4, "input", 0) == 4 * 8 * 2
    name = {"bf16": "bfloat16", "fp16": "float16"}[precision]
    assert graph.dtypes[graph.operators.index("addmm")] == name


def test_half_precision_leaves_whole_numbers_alone() -> None:
    class Tokens(Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 8)
            self.norm = nn.BatchNorm1d(5)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.norm(self.embed(tokens))

    graph = trace(Tokens, [InputSpec((5,), "int64")], precision="bf16")
    assert alive(graph, 4, "input", 0) == 4 * 5 * 8
    assert alive(graph, 4, "buffer", 0) == 2 * 5 * 2 + 8  # the count of batches has 8 bytes


def test_checkpointing_computes_again_what_it_does_not_keep() -> None:
    plain, again = trace(wide, WIDE), trace(wide, WIDE, checkpointing=True)
    assert live_peak(again, 4096).bytes < 0.8 * live_peak(plain, 4096).bytes
    assert macs_in(again, "forward") == macs_in(plain, "forward")

    def forward_operators(graph: OpGraph) -> int:
        return sum(graph.operators[i] == "addmm" for i in in_phase(graph, "backward"))

    assert forward_operators(plain) == 0
    assert forward_operators(again) >= 4  # the last layer of a block need not run again
    extra = macs_in(again, "backward") - macs_in(plain, "backward")
    assert 0.5 * macs_in(plain, "forward") <= extra <= macs_in(plain, "forward")


def test_accumulation_keeps_gradients() -> None:
    once, kept = trace(mlp, FLAT), trace(mlp, FLAT, accumulate=True)
    assert alive(once, 4, "gradient", 0) == 0
    assert alive(kept, 4, "gradient", 0) == MLP_PARAMS * 4
    assert live_peak(kept, 4).forward > live_peak(once, 4).forward


def test_inference_needs_less() -> None:
    training, inference = trace(wide, WIDE), trace(wide, WIDE, inference=True)
    assert set(inference.phase.tolist()) == {0}
    assert inference.trainable == 0
    assert inference.options["optimizer"] == "none"
    assert inference.forward_macs() == training.forward_macs()
    assert live_peak(inference, 256).bytes < 0.5 * live_peak(training, 256).bytes


# -- building


def test_the_users_module_stays_as_it_is() -> None:
    module = wide().eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    trace(module, WIDE, precision="bf16", checkpointing=True, optimizer="adam")
    assert not module.training
    after = module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert {tensor.dtype for tensor in after.values()} == {torch.float32}
    assert all(parameter.grad is None for parameter in module.parameters())
    assert all("forward" not in vars(part) for part in module.modules())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_factory_may_look_at_values(precision: str) -> None:
    def build() -> nn.Module:
        sizes = torch.linspace(8, 16, 2).int().tolist()
        net = nn.Sequential(nn.Linear(sizes[0], sizes[1]), nn.Linear(16, 4))
        assert float(net[0].weight.abs().sum()) > 0
        net.register_buffer("scale", torch.ones(6))
        return net

    graph = trace(build, FLAT, precision=precision)
    width = 4 if precision == "fp32" else 2
    assert alive(graph, 1, "weight", 0) == MLP_PARAMS * width
    assert alive(graph, 1, "buffer", 0) == 6 * width


def test_no_weights_are_allocated() -> None:
    """80 layers of 30,000 x 30,000 are 72 billion parameters, 288 GB."""
    width, layers = 30_000, 80
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = trace(
        lambda: nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers))),
        [InputSpec((width,))],
        optimizer="adam",
    )
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert graph.params == width * width * layers
    assert alive(graph, 1, "state", 0) == 2 * 4 * graph.params
    assert grown_kib < 200 * 1024


# -- errors


class Branch(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x if x.sum() > 0 else -x)


class Silent(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).argmax(-1)


def broken() -> nn.Module:
    raise ValueError("width must be even\nsecond line")


@pytest.mark.parametrize(
    ("build", "inputs", "options", "message"),
    [
        (Branch, "8", {}, "decides by the values of its data"),
        (mlp, "9", {}, "does not take the input 9: .*reduction dim"),
        (mlp, "9", {"precision": "amp"}, "does not take the input 9: "),
        (mlp, "3x7", {"inference": True}, "does not take the input 3x7: "),
        (mlp, "8,8", {}, "does not take the input 8, 8: .*positional arguments"),
        (lambda: nn.Conv2d(3, 4, 3), "4x8x8", {}, "does not take the input 4x8x8: "),
        (lambda: nn.Embedding(5, 3), "8", {}, "does not take the input 8: "),
        (lambda: nn.Embedding(5, 3), "8:int64", {"optimizer": "newt"}, "unknown optimizer 'newt'"),
        (mlp, "8", {"precision": "fp7"}, "unknown precision 'fp7'"),
        (lambda: mlp().requires_grad_(False), "8", {}, "no parameter .* is trainable"),
        (Silent, "8", {}, "returns nothing that can be trained on"),
        (lambda: 3, "8", {}, "returned a int, not a torch module"),
        (broken, "8", {}, "failed while it was traced: ValueError: width must be even$"),
    ],
)
def test_errors_are_one_line(
    build: Any, inputs: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        trace(build, InputSpec.parse(inputs), **options)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


# -- how people run them


class Attend(Module):
    """A causal block: fused attention with a mask flag, and a wide layer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.wide = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.wide(x)


class Causal(Module):
    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.blocks = nn.ModuleList([Attend() for _ in range(layers)])
        self.head = nn.Linear(32, 100, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


TOKENS = [InputSpec((64,), "int64", 100)]


@pytest.mark.parametrize("precision", ["fp32", "amp", "amp-bf16", "bf16"])
def test_checkpointing_of_a_causal_model(precision: str) -> None:
    """What is computed again must be the same as before, attention too."""
    peaks = {}
    for kind in ("none", "selective", "full"):
        graph = trace(Causal(), TOKENS, precision=precision, checkpointing=kind)
        peaks[kind] = live_peak(graph, 64).bytes
        fused = [
            i for i in in_phase(graph, "backward") if graph.operators[i].startswith("_scaled")
        ]
        again = [i for i in fused if not graph.operators[i].endswith("backward")]
        assert len(again) == {"none": 0, "selective": 3, "full": 6}[kind]
    assert peaks["full"] < peaks["selective"] < peaks["none"]


def test_checkpointing_without_blocks_says_so() -> None:
    graph = trace(mlp(), FLAT, checkpointing=True)
    assert any("no list of like blocks" in note for note in graph.notes)


def test_eager_attention_keeps_the_scores() -> None:
    fused, eager = (trace(Causal(), TOKENS, attention=kind) for kind in ("sdpa", "eager"))
    assert "attention" not in fused.options
    assert eager.options["attention"] == "eager"
    scores = 4 * 64 * 64 * 4  # heads, length, length, bytes
    more = live_peak(eager, 8).bytes - live_peak(fused, 8).bytes
    assert more > 5 * 8 * scores  # the last block has none left when the loss is there
    assert macs_in(eager, "forward") == macs_in(fused, "forward")


@pytest.mark.parametrize(
    ("asked", "kept"),
    [("tf32", "tf32"), ("amp-bf16", "amp-bf16"), ("amp_bf16", "amp-bf16"), ("fp8", "fp8")],
)
def test_precisions_that_people_ask_for(asked: str, kept: str) -> None:
    graph = trace(mlp(), FLAT, precision=asked)
    assert graph.options["precision"] == kept
    half = {"tf32": "float32"}.get(kept, "bfloat16")
    assert half in {graph.dtypes[i] for i in in_phase(graph, "forward")}


def test_what_optimizers_keep_and_make() -> None:
    size = MLP_PARAMS * 4

    def held(name: str, role: str) -> float:
        graph = trace(mlp(), FLAT, optimizer=name)
        steps = in_phase(graph, "optimizer")
        return alive(graph, 1, role, steps[-1])

    assert held("adamw", "state") == held("adamw-fused", "state") == 2 * size
    assert held("momentum", "state") == size
    assert held("adamw-8bit", "state") < 0.6 * size
    assert held("paged-adamw-8bit", "state") == 0
    made = {name: trace(mlp(), FLAT, optimizer=name) for name in ("adamw", "adamw-fused")}
    steps = {name: in_phase(graph, "optimizer") for name, graph in made.items()}
    assert len(steps["adamw-fused"]) == 1 < len(steps["adamw"])
    transient = {
        name: alive(graph, 1, "transient", steps[name][0] + 1) for name, graph in made.items()
    }
    assert transient["adamw"] == size
    assert transient["adamw-fused"] == 0


class Experts(Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 16, 24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, 16)
        ends = torch.full((4,), rows.shape[0] // 4, dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return torch._grouped_mm(rows.bfloat16(), self.weight.bfloat16(), offs=ends).float()


def test_experts_are_counted() -> None:
    graph = trace(Experts(), [InputSpec((8, 16))])
    work = 8 * 16 * 24
    assert macs_in(graph, "forward") == work
    assert macs_in(graph, "backward") >= work  # of the weights; the input needs none
    at = graph.operators.index("_grouped_mm")
    assert KINDS[graph.kind[at]] == "linear"


def test_compiled_modules_are_recognised() -> None:
    plain = trace(mlp(), FLAT)
    whole = trace(lambda: torch.compile(mlp()), FLAT)
    part = trace(lambda: nn.Sequential(torch.compile(mlp())), FLAT)
    asked = trace(mlp(), FLAT, compile=True)
    inside = mlp()
    inside.compile()
    for graph in (whole, part, asked, trace(lambda: inside, FLAT)):
        assert graph.options["compile"] is True
        assert any("torch.compile" in note for note in graph.notes)
        assert graph.operators == plain.operators
    assert "compile" not in plain.options


class Bag(Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(10_000, 16, sparse=sparse)
        self.head = nn.Linear(16, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(tokens).mean(1))


def test_sparse_gradients_have_the_rows_that_were_read() -> None:
    words = [InputSpec((5,), "int64", 10_000)]
    dense, thin = (trace(Bag(sparse), words) for sparse in (False, True))
    assert any("sparse gradients" in note for note in thin.notes)
    assert alive(dense, 3, "gradient", len(dense)) > 10_000 * 16 * 4
    head = (16 * 2 + 2) * 4
    assert alive(thin, 3, "gradient", len(thin)) == 3 * 5 * 16 * 4 + head


class Deciding(Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum().item() > 0 else -x


class Narrow(Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise AttributeError("no such thing")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Deciding(), r"decides by the values of its data in encoder\.1 \(Deciding\)"),
        (Narrow(), r"failed while it was traced in encoder\.1 \(Narrow\): AttributeError"),
        (nn.Linear(9, 8), r"does not take the input 8: .* in encoder\.1 \(Linear\)"),
    ],
)
def test_an_error_names_the_module(part: nn.Module, message: str) -> None:
    class Whole(Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(8, 8), part, nn.Linear(8, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.encoder(x)

    with pytest.raises(GraphError, match=message) as caught:
        trace(Whole(), FLAT)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"attention": "magic"}, "unknown attention 'magic': one of eager"),
        ({"checkpointing": "some"}, "unknown checkpointing 'some': one of none"),
        ({"layout": "chw"}, "unknown layout 'chw'"),
    ],
)
def test_unknown_options_are_one_line(option: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        trace(mlp(), FLAT, **option)


def test_compiled_modules_keep_no_cheap_results() -> None:
    """The activation is computed again from the layer's output; what that is made of stays."""
    wide = nn.Sequential(
        nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4)
    )
    eager, fused = (trace(wide, FLAT, compile=kind) for kind in (False, True))
    end = in_phase(eager, "backward")[0]
    batch = 100
    less = alive(eager, batch, "saved", end) - alive(fused, batch, "saved", end)
    assert less == 2 * batch * 64 * 4
