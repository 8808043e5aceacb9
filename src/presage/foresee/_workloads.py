"""Training workloads as the utilization estimator sees them, and how published tables become them.

A workload is a network as layers (multiply-accumulates, activations, parameters), a batch, where
the samples come from, and a GPU by its two headline numbers. Only what is known before a run is
read: measured columns are no features.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from presage.foresee.gpus import Gpu, Precision, find
from presage.foresee.graph.opgraph import CONVOLUTIONS, KINDS, OpGraph, input_elements
from presage.learn import Floats
from presage.model.errors import UserError

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "Features",
    "InputPipeline",
    "LayerClass",
    "TrainingProfile",
    "families_of",
    "features_of",
    "names_of",
    "profile_of",
    "usable_rows",
    "utilization_of",
]

_A100 = "a100-sxm4-40gb"
"""What GPUMemNet and MISO measured on."""

_MOST_LAYERS = 20_000
_MOST_TEXT = 4 << 20
_LAYER = re.compile(r"\('(\w{1,64})', (\d{1,15}), (\d{1,15})\)(?:, )?")


class LayerClass(IntEnum):
    """What a layer is, in the four classes that Yeung et al. (HotCloud 2020) count."""

    CONV = 0
    LINEAR = 1
    """Matrix products: linear layers, embeddings, attention, the gates of recurrent cells."""
    ACTIVATION = 2
    OTHER = 3
    """Normalisation, pooling, dropout, additions."""


class InputPipeline(IntEnum):
    """Where samples come from; what it costs the host differs by far."""

    VECTORS = 0
    """Rows, tokens, spectra."""
    IMAGES = 1
    ENVIRONMENT = 2
    """A simulated world that is stepped, as in reinforcement learning."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingProfile:
    """One training job: numbers per sample, for one forward pass."""

    batch: float
    input_elements: float
    kinds: npt.NDArray[np.intp]
    """Per layer, a `LayerClass`."""
    macs: Floats
    """Per layer: multiply-accumulates."""
    activations: Floats
    """Per layer: elements it puts out."""
    params: Floats
    """Per layer."""
    gpu: Gpu
    pipeline: InputPipeline = InputPipeline.VECTORS
    half_precision: bool = False
    tf32: bool = False
    """Matrix products and convolutions in FP32 use the faster units, as frameworks may."""
    serial: float = 0.0
    """Steps of recurrent layers that one launch starts, over all such layers."""

    @property
    def matrix_tflops(self) -> float:
        """The peak of the GPU for this job's matrix products."""
        faster: Precision = "tf32" if self.tf32 else "fp32"
        return self.gpu.tflops("fp16" if self.half_precision else faster)

    @classmethod
    def from_totals(
        cls,
        batch: float,
        input_elements: float,
        macs: float,
        activations: float,
        params: float,
        counts: tuple[int, int, int, int],
        gpu: Gpu,
        pipeline: InputPipeline = InputPipeline.VECTORS,
        half_precision: bool = False,
        tf32: bool = False,
        serial: float = 0.0,
    ) -> TrainingProfile:
        """From sums over the network, spread evenly; `counts` are layers of each `LayerClass`."""
        kinds = np.repeat(np.arange(4), np.maximum(counts, 0))
        if not kinds.size:
            raise UserError("a workload has at least one layer")
        heavy = (
            (kinds <= LayerClass.LINEAR)
            if np.any(kinds <= LayerClass.LINEAR)
            else np.ones(kinds.size, bool)
        )
        spread = heavy / heavy.sum()
        even = np.full(kinds.size, activations / kinds.size)
        return cls(
            batch,
            input_elements,
            kinds,
            macs * spread,
            even,
            params * spread,
            gpu,
            pipeline,
            half_precision,
            tf32,
            serial,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Many workloads as arrays; indexing chooses rows, as with a NumPy array."""

    rows: Floats
    """Per row: batch, input elements, pipeline, half precision, peak FLOP/s, bandwidth, peak
    FLOP/s of matrix products, steps of recurrent layers."""
    layers: Floats
    """Per layer of any row: kind, MACs, elements in, elements out, parameters."""
    owner: npt.NDArray[np.intp]
    """Per layer, its row; not descending."""

    @classmethod
    def of(cls, workloads: Sequence[TrainingProfile]) -> Features:
        """Check and gather workloads."""
        rows, layers, owner = [], [], []
        for n, job in enumerate(workloads):
            _check(n, job)
            rows.append(
                [
                    job.batch,
                    job.input_elements,
                    job.pipeline,
                    job.half_precision,
                    job.gpu.fp32_tflops * 1e12,
                    job.gpu.bandwidth_gbs * 1e9,
                    job.matrix_tflops * 1e12,
                    job.serial,
                ]
            )
            before = np.concatenate([[job.input_elements], job.activations[:-1]])
            layers.append(
                np.column_stack([job.kinds, job.macs, before, job.activations, job.params])
            )
            owner.append(np.full(job.kinds.size, n))
        return cls(
            np.array(rows, dtype=np.float64).reshape(-1, 8),
            np.concatenate([np.empty((0, 5)), *layers]).astype(np.float64),
            np.concatenate([np.empty(0), *owner]).astype(np.intp),
        )

    @classmethod
    def joined(cls, parts: Sequence[Features]) -> Features:
        """The rows of several, one after the other."""
        starts = np.cumsum([0, *(len(part) for part in parts)])
        return cls(
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.layers for part in parts]),
            np.concatenate([part.owner + at for part, at in zip(parts, starts, strict=False)]),
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Features:
        chosen = np.atleast_1d(np.arange(len(self))[index])
        first = np.searchsorted(self.owner, chosen, "left")
        counts = np.searchsorted(self.owner, chosen, "right") - first
        owner = np.repeat(np.arange(chosen.size), counts)
        within = np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)
        return Features(self.rows[chosen], self.layers[np.repeat(first, counts) + within], owner)

    def total(self, values: npt.NDArray[Any]) -> Floats:
        """The sum over the layers of each row."""
        return np.bincount(self.owner, values, len(self)).astype(np.float64)


def profile_of(graph: OpGraph, batch: float, gpu: Gpu) -> TrainingProfile:
    """The training of a graph, as its operators say."""
    forward = np.flatnonzero(graph.phase == 0)
    shape = graph.inputs[0].shape if graph.inputs else ()
    recurrent = int(np.sum(graph.kind[forward] == KINDS.index("recurrent")))
    kinds, macs = _CLASSES[graph.kind[forward]], graph.macs[forward, 1]
    precision = graph.options.get("precision", "fp32")
    # In FP32, PyTorch lets convolutions have TF32 and matrix products not.
    convolves = macs[kinds == LayerClass.CONV].sum() > 0.5 * macs.sum()
    return TrainingProfile(
        batch=batch,
        input_elements=float(max(1, input_elements(graph.inputs))),
        kinds=kinds,
        macs=macs,
        activations=graph.written[forward, 1],
        params=graph.weights[forward],
        gpu=gpu,
        pipeline=InputPipeline.IMAGES if len(shape) == 3 else InputPipeline.VECTORS,
        half_precision=precision not in ("fp32", "tf32"),
        tf32=gpu.tf32_tflops is not None and bool(convolves or precision == "tf32"),
        serial=float(recurrent * (shape[0] if shape else 1)),
    )


_CLASSES = np.full(len(KINDS), int(LayerClass.OTHER), np.intp)
for _kind in CONVOLUTIONS:
    _CLASSES[KINDS.index(_kind)] = LayerClass.CONV
for _kind in ("linear", "matmul", "attention", "recurrent"):
    _CLASSES[KINDS.index(_kind)] = LayerClass.LINEAR
_CLASSES[KINDS.index("activation")] = LayerClass.ACTIVATION


def _check(n: int, job: TrainingProfile) -> None:
    numbers = (job.macs, job.activations, job.params)
    sizes = {job.kinds.shape, *(part.shape for part in numbers)}
    if len(sizes) != 1 or not job.kinds.size or job.kinds.ndim != 1:
        raise UserError(f"workload {n}: give each layer a kind, MACs, activations and parameters")
    if not all(np.all(np.isfinite(part)) and np.all(part >= 0) for part in numbers):
        raise UserError(f"workload {n}: MACs, activations and parameters are 0 or more")
    if not (job.batch >= 1 and 0 <= job.input_elements < np.inf and job.batch < np.inf):
        raise UserError(f"workload {n}: the batch is 1 or more and the input 0 elements or more")


def usable_rows(table: pl.DataFrame) -> pl.DataFrame:
    """The rows that have a measured utilization of a real job."""
    import polars as pl  # when it is needed: it takes longer than an answer

    if "util_valid" in table.columns:
        return table.filter("util_valid")
    return table.filter(pl.col("model") != "dummy")


def utilization_of(table: pl.DataFrame) -> Floats:
    """The measured GPU utilization, in percent."""
    column = {"gpumemnet": "Avg GPUTL", "lucid": "gpu_util", "miso": "util_sm_pct"}
    return table[column[_source(table)]].to_numpy().astype(np.float64)


def families_of(table: pl.DataFrame) -> npt.NDArray[np.str_]:
    """What must not be in training and test: shape and activation of synthetic nets, else kin.

    Synthetic networks are of one family if they have the same layout (`cfg_arch`) and activation
    function; real ones if their architecture has the same name (ResNet18 and ResNet50 have).
    """
    if _source(table) == "gpumemnet":
        prefix = "cnn" if "cfg_input_size" in table.columns else "mlp"
        activation = table["Activation Function"].fill_null("none")
        pairs = zip(table["cfg_arch"], activation, strict=True)
        return np.array([f"{prefix}/{arch}/{act}" for arch, act in pairs])
    return np.array([re.split(r"\d|V\d", name)[0].lower() for name in table["model"]])


def names_of(table: pl.DataFrame) -> npt.NDArray[np.str_]:
    """What a names-only model may know of a job: its name and data set."""
    if _source(table) == "gpumemnet":
        return families_of(table)
    sets = table["dataset"] if "dataset" in table.columns else [""] * len(table)
    return np.array([f"{name}/{data}" for name, data in zip(table["model"], sets, strict=True)])


def features_of(table: pl.DataFrame) -> Features:
    """Workloads of a table of GPUMemNet, Lucid or MISO, told apart by their columns."""
    source = _source(table)
    if source == "gpumemnet":
        return Features.of([_from_gpumemnet(row) for row in table.iter_rows(named=True)])
    if source == "lucid":
        return Features.of(
            [
                _from_facts(row["model"], row["batchsize"], bool(row["amp"]), find("rtx-3090"))
                for row in table.iter_rows(named=True)
            ]
        )
    return Features.of(
        [
            _from_facts(row["model"], row["batch"], False, find(_A100))
            for row in table.iter_rows(named=True)
        ]
    )


def _source(table: pl.DataFrame) -> str:
    columns = set(table.columns)
    if {"Activations-Params", "Batch Size"} <= columns:
        return "gpumemnet"
    if {"model", "dataset", "batchsize", "amp"} <= columns:
        return "lucid"
    if {"model", "batch"} <= columns:
        return "miso"
    raise UserError(
        "the table has the columns of neither GPUMemNet (Activations-Params, Batch Size) nor "
        "Lucid (model, dataset, batchsize, amp) nor MISO (model, batch)"
    )


def _from_gpumemnet(row: dict[str, Any]) -> TrainingProfile:
    listed = read_layers(row["Activations-Params"])
    images = row.get("cfg_input_size") is not None
    pixels = row["cfg_input_size"] ** 2 if images else 1
    elements = pixels * row["cfg_input_channels"] if images else row["cfg_input"]
    kinds, macs = [], []
    for n, (name, _, params) in enumerate(listed):
        kind = _KINDS.get(name, LayerClass.ACTIVATION)
        if kind is LayerClass.CONV:
            pixels = _pixels(listed, n, pixels)
        kinds.append(kind)
        macs.append({LayerClass.CONV: pixels * params, LayerClass.LINEAR: params}.get(kind, 0))
    return TrainingProfile(
        batch=float(row["Batch Size"]),
        input_elements=float(elements),
        kinds=np.array(kinds, dtype=np.intp),
        macs=np.array(macs, dtype=np.float64),
        activations=np.array([out for _, out, _ in listed], dtype=np.float64),
        params=np.array([params for _, _, params in listed], dtype=np.float64),
        pipeline=InputPipeline.IMAGES if images else InputPipeline.VECTORS,
        gpu=find(_A100),
    )


def read_layers(text: str) -> list[tuple[str, int, int]]:
    """A list of ('name', output elements, parameters) as GPUMemNet writes it; runs nothing."""
    layers: list[tuple[str, int, int]] = []
    at = 1
    if len(text) <= _MOST_TEXT and text.startswith("[") and text.endswith("]"):
        while (match := _LAYER.match(text, at)) and len(layers) < _MOST_LAYERS:
            layers.append((match[1], int(match[2]), int(match[3])))
            at = match.end()
    if not layers or at != len(text) - 1:
        raise UserError(
            f"Activations-Params is no list of ('layer', outputs, parameters): {text[:60]}"
        )
    return layers


def _pixels(listed: list[tuple[str, int, int]], n: int, before: int) -> int:
    """Output positions of a convolution: from the channels of the norm after it, else as before
    if that divides, else from a 3 × 3 kernel with as many channels in as out."""
    _, out, params = listed[n]
    follows = listed[n + 1] if n + 1 < len(listed) else ("", 0, 0)
    if follows[0].startswith("batchnorm") and follows[1] == out and follows[2] >= 2:
        channels = follows[2] // 2
    elif before and out % before == 0:
        channels = out // before
    else:
        channels = max(1, round((params / 9) ** 0.5))
    return max(1, out // max(1, channels))


_KINDS = {
    "conv2d": LayerClass.CONV,
    "linear": LayerClass.LINEAR,
    **dict.fromkeys(
        ("batchnorm2d", "batch_normalization", "dropout", "adaptive_avg_pool2d", "Identity"),
        LayerClass.OTHER,
    ),
}


@dataclass(frozen=True, slots=True)
class _PublishedNetwork:
    """A published network, per sample of the data set it is trained on."""

    gmacs: float
    params_m: float
    activations_m: float
    counts: tuple[int, int, int, int]
    """Convolutions, matrix products, activations, others."""
    input_elements: float
    pipeline: InputPipeline


def _from_facts(model: str, batch: float, half_precision: bool, gpu: Gpu) -> TrainingProfile:
    facts = _FACTS.get(model)
    if facts is None:
        raise UserError(f"no facts about the model '{model}'; known: {', '.join(_FACTS)}")
    return TrainingProfile.from_totals(
        float(batch),
        facts.input_elements,
        facts.gmacs * 1e9,
        facts.activations_m * 1e6,
        facts.params_m * 1e6,
        facts.counts,
        gpu,
        facts.pipeline,
        half_precision,
    )


# Derived from the layer shapes in the papers that introduced the networks, at the input size of
# the data set; a GAN counts each pass of a training step through either network. Where a paper
# leaves a size open, the usual one is taken: 384 tokens for SQuAD, 512 for long texts, 32 × 32
# pixels for CIFAR-10, 224 × 224 for ImageNet, 256 × 256 for CycleGAN.
_V, _I, _E = InputPipeline.VECTORS, InputPipeline.IMAGES, InputPipeline.ENVIRONMENT
_FACTS = {
    # on an RTX 3090 (Lucid)
    "BERT": _PublishedNetwork(
        35.3, 108, 60, (0, 97, 12, 62), 384, _V
    ),  # Devlin 2019, base, 384 tokens
    "DCGAN": _PublishedNetwork(
        0.42, 6.3, 1.1, (20, 0, 20, 13), 12_388, _I
    ),  # Radford 2016, 64 × 64
    "MobileNetV3": _PublishedNetwork(
        0.057, 2.5, 1.4, (52, 2, 34, 43), 150_528, _I
    ),  # Howard 2019, small
    "NeuMF": _PublishedNetwork(1e-5, 1.5, 3e-4, (0, 9, 4, 3), 2, _V),  # He 2017
    "PPO": _PublishedNetwork(
        1e-5, 0.01, 3e-4, (0, 6, 4, 2), 8, _E
    ),  # Schulman 2017, two layers of 64
    "TD3": _PublishedNetwork(
        3e-4, 0.4, 4e-3, (0, 18, 12, 6), 24, _E
    ),  # Fujimoto 2018, six nets 256-256
    "ResNet18": _PublishedNetwork(
        0.56, 11.2, 0.62, (20, 1, 17, 30), 3072, _I
    ),  # He 2016, for 32 × 32
    "ResNet50": _PublishedNetwork(4.1, 25.6, 11.1, (53, 1, 49, 71), 150_528, _I),  # He 2016
    "Transformer": _PublishedNetwork(
        1.0, 50, 2, (0, 133, 12, 90), 40, _V
    ),  # Vaswani 2017, 20 tokens
    "VGG": _PublishedNetwork(
        0.153, 9.2, 0.26, (8, 1, 8, 14), 3072, _I
    ),  # Simonyan 2015, 11 layers
    # on an A100 (MISO)
    "bert": _PublishedNetwork(48.0, 108, 90, (0, 97, 12, 62), 512, _V),
    "cyclegan": _PublishedNetwork(120.0, 28, 60, (70, 0, 60, 70), 393_216, _I),  # Zhu 2017
    "deepspeech2": _PublishedNetwork(5.0, 40, 10, (2, 500, 300, 100), 100_000, _V),  # Amodei 2016
    "embedding": _PublishedNetwork(
        0.05, 2.0, 0.1, (3, 3, 4, 5), 1000, _V
    ),  # text CNN on word vectors
    "gnn": _PublishedNetwork(0.05, 0.1, 0.2, (0, 10, 6, 20), 2000, _V),  # Gilmer 2017, molecules
    "mobilenet": _PublishedNetwork(
        0.012, 3.2, 0.2, (28, 1, 27, 29), 3072, _I
    ),  # Howard 2017, 32 × 32
    "resnet": _PublishedNetwork(
        0.08, 23.6, 0.25, (53, 1, 49, 71), 3072, _I
    ),  # He 2016, 50 layers, 32 × 32
    "transformer": _PublishedNetwork(5.0, 20, 10, (0, 60, 8, 30), 200, _V),
}
