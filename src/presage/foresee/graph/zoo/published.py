"""Entries of the zoo that public tables of training throughput name, beside the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from presage.foresee.graph.opgraph import InputSpec
from presage.foresee.graph.zoo import Published, ZooEntry, made, token_inputs

__all__ = ["published_entries"]

_IMAGE = (InputSpec((3, 224, 224)),)
_TORCHVISION = "torchvision's model pages: num_params and GFLOPS (multiply-accumulates)"
_NVIDIA = "NVIDIA's DeepLearningExamples"


def published_entries() -> list[ZooEntry]:
    """All of them."""
    return [*_torchvision(), *_images(), *_text(), *_sound(), *_tables()]


def _torchvision() -> list[ZooEntry]:
    rows: list[tuple[str, str, Callable[[], Any], str, float | None, int]] = [
        (
            "resnext101-32x8d",
            "resnet",
            made("vision.resnet", 101, groups=32, per_group=8),
            "arXiv:1611.05431",
            16.414,
            88791336,
        ),
        (
            "resnext101-64x4d",
            "resnet",
            made("vision.resnet", 101, groups=64, per_group=4),
            "arXiv:1611.05431",
            15.46,
            83455272,
        ),
        (
            "wide-resnet101-2",
            "resnet",
            made("vision.resnet", 101, per_group=128),
            "arXiv:1605.07146",
            22.753,
            126886696,
        ),
        (
            "squeezenet1-0",
            "squeezenet",
            made("vision.squeezenet", version="1.0"),
            "arXiv:1602.07360",
            0.819,
            1248424,
        ),
        ("googlenet", "googlenet", made("inception.googlenet"), "arXiv:1409.4842", 1.498, 6624904),
    ]
    mnas = {"0.5": (0.104, 2218512), "0.75": (0.215, 3170208), "1.0": (0.314, 4383312)}
    for wide, (gmacs, params) in (mnas | {"1.3": (0.526, 6282256)}).items():
        build = made("mobile.mnasnet", float(wide))
        name = f"mnasnet{wide.replace('.', '-')}"
        rows.append((name, "mnasnet", build, "arXiv:1807.11626", gmacs, params))
    shuffle: dict[str, tuple[float | None, int]]
    shuffle = {"0.5": (None, 1366792), "1.5": (0.296, 3503624), "2.0": (0.583, 7393996)}
    for wide, (work, params) in shuffle.items():
        build = made("mobile.shufflenet_v2", wide=wide)
        name = f"shufflenetv2-x{wide.replace('.', '-')}"
        rows.append((name, "shufflenet", build, "arXiv:1807.11164", work, params))
    aliases = {
        "shufflenetv2-x0-5": ("shufflenet_v2_x0_5",),
        "shufflenetv2-x1-5": ("shufflenet_v2_x1_5",),
        "shufflenetv2-x2-0": ("shufflenet_v2_x2_0",),
    }
    return [
        ZooEntry(
            name,
            family,
            build,
            _IMAGE,
            source,
            aliases.get(name, ()),
            Published(None if gmacs is None else gmacs * 1e9, params, _TORCHVISION),
        )
        for name, family, build, source, gmacs, params in rows
    ]


def _images() -> list[ZooEntry]:
    large = (InputSpec((3, 380, 380)),)
    b4 = {"wide": 1.4, "deep": 1.8}
    counted = Published(None, 19341616, _TORCHVISION)
    sizes = (InputSpec((4, 192, 160)),), (InputSpec((4, 128, 128, 128)),)
    tan = "arXiv:1905.11946"
    return [
        ZooEntry(
            "inception-v3",
            "inception",
            made("inception.inception_v3"),
            (InputSpec((3, 299, 299)),),
            "arXiv:1512.00567",
            (),
            Published(5.7e9, 23834568, "the paper: 5 billion; timm's table of its inception_v3"),
        ),
        ZooEntry(
            "resnext101-32x4d",
            "resnet",
            made("vision.resnet", 101, groups=32, per_group=4),
            _IMAGE,
            "arXiv:1611.05431",
            (),
            Published(8.0e9, 44177704, "timm's table of its resnext101_32x4d"),
        ),
        ZooEntry(
            "se-resnext101-32x4d",
            "resnet",
            made("vision.resnet", 101, groups=32, per_group=4, squeeze=True),
            _IMAGE,
            "arXiv:1709.01507",
            ("seresnext101-32x4d",),
            Published(8.0e9, 48955416, "timm's table of its seresnext101_32x4d"),
        ),
        ZooEntry(
            "efficientnet-b4",
            "efficientnet",
            made("mobile.efficientnet", **b4),
            large,
            tan,
            (),
            counted,
        ),
        ZooEntry(
            "efficientnet-widese-b0",
            "efficientnet",
            made("mobile.efficientnet", wide_squeeze=True),
            _IMAGE,
            f"{tan}; {_NVIDIA}",
        ),
        ZooEntry(
            "efficientnet-widese-b4",
            "efficientnet",
            made("mobile.efficientnet", **b4, wide_squeeze=True),
            large,
            f"{tan}; {_NVIDIA}",
        ),
        ZooEntry(
            "ssd300-resnet50",
            "ssd",
            made("detection.ssd300"),
            (InputSpec((3, 300, 300)),),
            f"arXiv:1512.02325; {_NVIDIA}",
            ("ssd300", "ssd"),
        ),
        ZooEntry(
            "maskrcnn-r50-fpn",
            "rcnn",
            made("detection.maskrcnn"),
            (InputSpec((3, 800, 1344)),),
            "arXiv:1703.06870, images of 1333×800 padded to a multiple of 32",
            ("maskrcnn", "mask-rcnn"),
            Published(None, 44401393, "torchvision's model page of its maskrcnn_resnet50_fpn"),
        ),
        ZooEntry(
            "efficientdet-d0",
            "efficientdet",
            made("detection.efficientdet_d0"),
            (InputSpec((3, 512, 512)),),
            "arXiv:1911.09070",
            (),
            Published(2.5e9, None, "arXiv:1911.09070, table 2 (and 3.9 M parameters)"),
        ),
        ZooEntry(
            "nnunet-2d",
            "unet",
            made("medical.nnunet", 2),
            sizes[0],
            f"arXiv:1809.10486; {_NVIDIA}",
        ),
        ZooEntry(
            "nnunet-3d",
            "unet",
            made("medical.nnunet", 3),
            sizes[1],
            f"arXiv:1809.10486; {_NVIDIA}",
        ),
        ZooEntry(
            "unet-medical",
            "unet",
            made("medical.unet"),
            (InputSpec((1, 576, 576)),),
            "arXiv:1505.04597",
            ("unet",),
            Published(None, 31000000, "public implementations print 31.0 M"),
        ),
        ZooEntry(
            "unet3d-medical",
            "unet",
            made("medical.unet3d"),
            sizes[1],
            "arXiv:1606.06650",
            ("unet3d",),
        ),
    ]


def _text() -> list[ZooEntry]:
    words, devlin = 30522, "arXiv:1810.04805"
    entries = [
        ZooEntry(
            "bert-large-squad",
            "bert",
            made("transformers.bert", "large", "span"),
            token_inputs(384, words),
            f"{devlin}; 384 tokens and two scores for each, as trained on SQuAD",
        )
    ]
    for size in ("base", "large"):
        for length in (128, 512):
            entries.append(
                ZooEntry(
                    f"bert-{size}-pretrain-{length}",
                    "bert",
                    made("transformers.bert", size, "masked"),
                    token_inputs(length, words),
                    f"{devlin}; scores of every token, not of the masked ones alone",
                    (f"bert-{size}-pretrain", *_electra(size, length)) if length == 512 else (),
                )
            )
    for length in (128, 512):
        entries.append(
            ZooEntry(
                f"bart-large-{length}",
                "bart",
                made("transformers.bart_large"),
                token_inputs(length, 50265, 2),
                "arXiv:1910.13461",
                ("bart-large",) if length == 512 else (),
                Published(None, 406290432, "parameters of the released model"),
            )
        )
    xl = "arXiv:1901.02860"
    return [
        *entries,
        ZooEntry(
            "transformer-xl-base",
            "transformer-xl",
            made("transformers.memory_transformer", 16, 512, 8, 2048),
            token_inputs(192, 267735),
            f"{xl}; {_NVIDIA}: 192 tokens",
            ("transformer-xl",),
        ),
        ZooEntry(
            "transformer-xl-large",
            "transformer-xl",
            made("transformers.memory_transformer", 18, 1024, 16, 4096),
            token_inputs(384, 267735),
            f"{xl}; {_NVIDIA}: 384 tokens",
        ),
        ZooEntry(
            "transformer-big",
            "transformer",
            made("transformers.translator", 33708, 6, 1024, 16),
            token_inputs(32, 33708, 2),
            "arXiv:1706.03762, 32 tokens in and out",
            (),
            Published(None, 213000000, "arXiv:1706.03762, table 3 (in millions)"),
        ),
        ZooEntry(
            "gnmt",
            "gnmt",
            made("sequence.gnmt"),
            token_inputs(24, 32320, 2),
            f"arXiv:1609.08144; {_NVIDIA}: 4 layers; 24 tokens in and out",
        ),
    ]


def _electra(size: str, length: int) -> tuple[str, ...]:
    """BERT trained otherwise: the same work to within what its small generator takes."""
    return (f"electra-{size}-pretrain",) if (size, length) == ("base", 512) else ()


def _sound() -> list[ZooEntry]:
    sound = (InputSpec((64, 1600)),)
    return [
        ZooEntry(
            "waveglow",
            "waveglow",
            made("speech.waveglow"),
            (InputSpec((80, 32)), InputSpec((8000,))),
            f"arXiv:1811.00002; {_NVIDIA}: 8,000 samples, 512 channels",
        ),
        ZooEntry(
            "jasper",
            "jasper",
            made("speech.jasper"),
            sound,
            "arXiv:1904.03288, 10×5 dense residual; 16 s of sound",
            (),
            Published(None, 333000000, "arXiv:1904.03288, table 4 (in millions)"),
        ),
        ZooEntry(
            "quartznet",
            "jasper",
            made("speech.quartznet"),
            sound,
            "arXiv:1910.10261, 15×5; 16 s of sound",
            (),
            Published(None, 18900000, "arXiv:1910.10261, table 1 (in millions)"),
        ),
    ]


def _tables() -> list[ZooEntry]:
    return [
        ZooEntry(
            "neumf-ml20m",
            "recommender",
            made("other.neumf_wide"),
            (InputSpec((), "int64", 26744), InputSpec((), "int64", 26744)),
            f"arXiv:1708.05031; {_NVIDIA}: MovieLens-20M",
            (),
            Published(None, 31832577, f"{_NVIDIA}, as its trainer prints"),
        ),
        ZooEntry(
            "dlrm-small",
            "recommender",
            made("other.dlrm"),
            (InputSpec((13,)), InputSpec((26,), "int64", 300000)),
            f"arXiv:1906.00091; {_NVIDIA}",
            ("dlrm",),
        ),
    ]
