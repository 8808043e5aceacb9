"""Well-known models in plain PyTorch, by name; listing and finding them needs no PyTorch.

Aliases of the form `source:name` are the models of public traces and profiles, such as
`gavel:ResNet-18 (batch size 16)` or `lucid:VGG/CIFAR-10`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Any

from presage.foresee.graph.opgraph import InputSpec
from presage.model.errors import GraphError

__all__ = ["Published", "ZooEntry", "find", "names"]

_TORCHVISION = "torchvision's model pages: num_params and GFLOPS (multiply-accumulates)"


@dataclass(frozen=True, slots=True)
class Published:
    """What others say of a model: of one sample, forward."""

    macs: float | None = None
    params: int | None = None
    where: str = ""


@dataclass(frozen=True, slots=True)
class ZooEntry:
    """A model that can be built."""

    name: str
    family: str
    build: Callable[[], Any]
    """Makes the module; needs PyTorch."""
    inputs: tuple[InputSpec, ...]
    source: str
    """The paper or page that gives its shapes."""
    aliases: tuple[str, ...] = ()
    published: Published = Published()


def names() -> list[str]:
    """The name of every entry."""
    return [entry.name for entry in _entries()]


def find(name: str) -> ZooEntry:
    """The entry of a name or an alias; case, hyphens and a batch size after it do not matter."""
    entry = _index().get(_plain(name))
    if entry is not None:
        return entry
    near = get_close_matches(_plain(name), _index(), n=4, cutoff=0.5)
    close = dict.fromkeys(_index()[key].name for key in near)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are: {', '.join(names())}"
    raise GraphError(f"the zoo has no '{name}': {hint}")


def _plain(name: str) -> str:
    """`ResNet-18 (batch size 16)` and `resnet18` are the same."""
    source, _, rest = name.rpartition(":")
    rest = re.sub(r"\(batch size \d+\)", "", rest.lower())
    return f"{source.lower()}:{re.sub(r'[^a-z0-9]', '', rest)}"


@cache
def _index() -> dict[str, ZooEntry]:
    index: dict[str, ZooEntry] = {}
    for entry in _entries():
        for name in (entry.name, *entry.aliases):
            index[_plain(name)] = entry
    return index


def made(place: str, *args: Any, **options: Any) -> Callable[[], Any]:
    """A function that imports a builder when it is called, and calls it."""
    module, _, function = place.partition(".")

    def build() -> Any:
        return getattr(import_module(f"{__name__}.{module}"), function)(*args, **options)

    return build


_IMAGE = (InputSpec((3, 224, 224)),)
_SMALL_IMAGE = (InputSpec((3, 32, 32)),)


def token_inputs(count: int, vocabulary: int, times: int = 1) -> tuple[InputSpec, ...]:
    return (InputSpec((count,), "int64", vocabulary),) * times


@cache
def _entries() -> tuple[ZooEntry, ...]:
    from presage.foresee.graph.zoo.published import published_entries

    ours = (*_vision(), *_mobile(), *_transformers(), *_sequence(), *_generative(), *_others())
    return (*ours, *published_entries())


def _vision() -> list[ZooEntry]:
    he = "arXiv:1512.03385"
    rows: list[tuple[str, str, Callable[[], Any], str, float, int, tuple[str, ...]]] = [
        (
            "resnet18",
            "resnet",
            made("vision.resnet", 18),
            he,
            1.814,
            11689512,
            ("muri:resnet18",),
        ),
        ("resnet34", "resnet", made("vision.resnet", 34), he, 3.664, 21797672, ()),
        (
            "resnet50",
            "resnet",
            made("vision.resnet", 50),
            he,
            4.089,
            25557032,
            (
                "gavel:ResNet-50",
                "lucid:ResNet50/ImageNet",
                "miso:resnet",
                "sia:imagenet",
                "zeus:resnet50",
            ),
        ),
        ("resnet101", "resnet", made("vision.resnet", 101), he, 7.801, 44549160, ()),
        ("resnet152", "resnet", made("vision.resnet", 152), he, 11.514, 60192808, ()),
        (
            "resnext50-32x4d",
            "resnet",
            made("vision.resnet", 50, groups=32, per_group=4),
            "arXiv:1611.05431",
            4.23,
            25028904,
            ("resnext50",),
        ),
        (
            "wide-resnet50-2",
            "resnet",
            made("vision.resnet", 50, per_group=128),
            "arXiv:1605.07146",
            11.398,
            68883240,
            (),
        ),
        ("alexnet", "alexnet", made("vision.alexnet"), "arXiv:1404.5997", 0.714, 61100840, ()),
        (
            "squeezenet1-1",
            "squeezenet",
            made("vision.squeezenet"),
            "arXiv:1602.07360",
            0.349,
            1235496,
            ("squeezenet",),
        ),
        (
            "convnext-tiny",
            "convnext",
            made("vision.convnext"),
            "arXiv:2201.03545",
            4.456,
            28589128,
            ("convnext-t",),
        ),
    ]
    vggs = {
        11: (7.609, 132863336, 132868840),
        13: (11.308, 133047848, 133053736),
        16: (15.47, 138357544, 138365992),
        19: (19.632, 143667240, 143678248),
    }
    for depth, (gmacs, params, with_norm) in vggs.items():
        paper = "arXiv:1409.1556"
        plain, normed = made("vision.vgg", depth), made("vision.vgg", depth, norm=True)
        rows.append((f"vgg{depth}", "vgg", plain, paper, gmacs, params, (f"muri:vgg{depth}",)))
        rows.append((f"vgg{depth}-bn", "vgg", normed, paper, gmacs, with_norm, ()))
    dense = {
        121: (2.834, 7978856),
        161: (7.728, 28681000),
        169: (3.36, 14149480),
        201: (4.291, 20013928),
    }
    for depth, (gmacs, params) in dense.items():
        build = made("vision.densenet", depth)
        rows.append((f"densenet{depth}", "densenet", build, "arXiv:1608.06993", gmacs, params, ()))
    return [*_tabled(rows), *_small_images()]


def _tabled(
    rows: list[tuple[str, str, Callable[[], Any], str, float, int, tuple[str, ...]]],
) -> list[ZooEntry]:
    """Entries for images of 224×224 that torchvision's pages give figures of."""
    return [
        ZooEntry(
            name,
            family,
            build,
            _IMAGE,
            source,
            aliases,
            Published(gmacs * 1e9, params, _TORCHVISION),
        )
        for name, family, build, source, gmacs, params, aliases in rows
    ]


def _small_images() -> list[ZooEntry]:
    stem = "with a 3×3 stem for 32×32, as public CIFAR-10 trainers have it"
    return [
        ZooEntry(
            "resnet18-cifar10",
            "resnet",
            made("vision.resnet", 18, 10, small=True),
            _SMALL_IMAGE,
            f"arXiv:1512.03385, {stem}",
            ("gavel:ResNet-18", "lucid:ResNet18/CIFAR-10", "sia:cifar10"),
        ),
        ZooEntry(
            "resnet50-cifar10",
            "resnet",
            made("vision.resnet", 50, 10, small=True),
            _SMALL_IMAGE,
            f"arXiv:1512.03385, {stem}",
        ),
        ZooEntry(
            "vgg16-cifar10",
            "vgg",
            made("vision.vgg", 16, 10, norm=True, small=True),
            _SMALL_IMAGE,
            "arXiv:1409.1556, one linear layer as public CIFAR-10 trainers have it",
            ("lucid:VGG/CIFAR-10",),
        ),
        ZooEntry(
            "shufflenetv2-cifar100",
            "shufflenet",
            made("mobile.shufflenet_v2", 100, small=True),
            _SMALL_IMAGE,
            f"arXiv:1807.11164, {stem}",
            ("zeus:shufflenetv2",),
        ),
        ZooEntry(
            "yolov3",
            "yolo",
            made("vision.yolov3"),
            (InputSpec((3, 416, 416)),),
            "arXiv:1804.02767",
            ("sia:yolov3",),
            Published(65.86e9 / 2, None, "pjreddie.com/darknet/yolo: 65.86 Bn FLOPS at 416"),
        ),
    ]


def _mobile() -> list[ZooEntry]:
    v3 = "arXiv:1905.02244"
    return _tabled(
        [
            (
                "mobilenetv2",
                "mobilenet",
                made("mobile.mobilenet_v2"),
                "arXiv:1801.04381",
                0.301,
                3504872,
                ("miso:mobilenet",),
            ),
            (
                "mobilenetv3-large",
                "mobilenet",
                made("mobile.mobilenet_v3", "large"),
                v3,
                0.217,
                5483032,
                ("lucid:MobileNetV3/ImageNet", "mobilenetv3"),
            ),
            (
                "mobilenetv3-small",
                "mobilenet",
                made("mobile.mobilenet_v3", "small"),
                v3,
                0.057,
                2542856,
                (),
            ),
            (
                "efficientnet-b0",
                "efficientnet",
                made("mobile.efficientnet"),
                "arXiv:1905.11946",
                0.386,
                5288548,
                ("efficientnet",),
            ),
            (
                "shufflenetv2-x1-0",
                "shufflenet",
                made("mobile.shufflenet_v2"),
                "arXiv:1807.11164",
                0.145,
                2278604,
                ("muri:shufflenet_v2_x1_0", "shufflenetv2"),
            ),
        ]
    )


def _transformers() -> list[ZooEntry]:
    devlin, words = "arXiv:1810.04805", 30522
    compared = "arXiv:2004.02984, table 4: FLOPs at 128 tokens; parameters of the released model"
    counted = "parameters of the released model"
    squad = "384 tokens and two scores for each, as trained on SQuAD"
    entries = [
        ZooEntry(
            "vit-b-16",
            "vit",
            made("transformers.vit"),
            _IMAGE,
            "arXiv:2010.11929",
            ("vit", "vit-base-patch16-224"),
            Published(17.564e9, 86567656, _TORCHVISION),
        ),
        ZooEntry(
            "bert-base",
            "bert",
            made("transformers.bert", "base", "pooled"),
            token_inputs(128, words),
            devlin,
            ("bert",),
            Published(22.5e9 / 2, 109482240, compared),
        ),
        ZooEntry(
            "bert-base-squad",
            "bert",
            made("transformers.bert", "base", "span"),
            token_inputs(384, words),
            f"{devlin}; {squad}",
            ("lucid:BERT/SQuAD", "miso:bert", "muri:bert", "sia:bert", "zeus:bert_base_uncased"),
        ),
        ZooEntry(
            "bert-large",
            "bert",
            made("transformers.bert", "large", "pooled"),
            token_inputs(128, words),
            devlin,
            (),
            Published(None, 335141888, counted),
        ),
        ZooEntry(
            "bert-large-512",
            "bert",
            made("transformers.bert", "large", "pooled"),
            token_inputs(512, words),
            devlin,
            ("neusight:bert_large",),
        ),
    ]
    gpt2 = "Radford et al., 2019"
    sizing = "nanoGPT's transformer_sizing notebook: 291.6 GFLOPs forward; " + counted
    gpts: list[tuple[str, tuple[int, int, int], str, tuple[str, ...], Published]] = [
        (
            "gpt2",
            (12, 768, 12),
            gpt2,
            ("gpt2-small", "muri:gpt2"),
            Published(291648307200 / 2, 124439808, sizing),
        ),
        ("gpt2-medium", (24, 1024, 16), gpt2, (), Published(None, 354823168, counted)),
        (
            "gpt2-large",
            (36, 1280, 20),
            gpt2,
            ("neusight:gpt2_large",),
            Published(None, 774030080, counted),
        ),
    ]
    for name, sizes, source, aliases, published in gpts:
        build = made("transformers.gpt", *sizes)
        inputs = token_inputs(1024, 50257)
        entries.append(ZooEntry(name, "gpt", build, inputs, source, aliases, published))
    gpt3, many = "arXiv:2005.14165, table 2.1", {"positions": 2048}
    entries += [
        ZooEntry(
            "gpt3-xl",
            "gpt",
            made("transformers.gpt", 24, 2048, 16, **many),
            token_inputs(2048, 50257),
            gpt3,
            ("neusight:gpt3_xl",),
        ),
        ZooEntry(
            "gpt3-2.7b",
            "gpt",
            made("transformers.gpt", 32, 2560, 32, **many),
            token_inputs(2048, 50257),
            gpt3,
            ("neusight:gpt3_27", "sia:gpt_pmp"),
        ),
        ZooEntry(
            "opt-1.3b",
            "gpt",
            made(
                "transformers.gpt",
                24,
                2048,
                32,
                positions=2050,
                vocabulary=50272,
                activation="relu",
            ),
            token_inputs(2048, 50272),
            "arXiv:2205.01068, table 1",
            ("neusight:opt_13",),
            Published(None, 1315758080, counted),
        ),
        ZooEntry(
            "transformer-base",
            "transformer",
            made("transformers.translator", 37000),
            token_inputs(64, 37000, 2),
            "arXiv:1706.03762, 64 tokens in and out",
            ("transformer", "miso:transformer"),
            Published(None, 65000000, "arXiv:1706.03762, table 3 (in millions)"),
        ),
        ZooEntry(
            "transformer-multi30k",
            "transformer",
            made("transformers.translator", 9521),
            token_inputs(50, 9521, 2),
            "arXiv:1706.03762, with the vocabulary and lengths of Multi30k",
            ("gavel:Transformer", "lucid:Transformer/Multi30k"),
        ),
    ]
    return entries


def _sequence() -> list[ZooEntry]:
    return [
        ZooEntry(
            "lstm-wikitext2",
            "lstm",
            made("sequence.lstm_language_model", 33278, 200),
            token_inputs(35, 33278),
            "PyTorch's word language model example: 2 layers of 200, 35 words at a time",
            ("gavel:LM", "lm"),
        ),
        ZooEntry(
            "lstm-ptb-large",
            "lstm",
            made("sequence.lstm_language_model", 10000, 1500, 2, 0.65),
            token_inputs(35, 10000),
            "arXiv:1409.2329, the large one",
            ("lstm",),
            Published(None, 66000000, "Press and Wolf, arXiv:1608.05859, table 3 (in millions)"),
        ),
        ZooEntry(
            "deepspeech2",
            "deepspeech",
            made("sequence.deepspeech2"),
            (InputSpec((1, 161, 800)),),
            "arXiv:1512.02595 with 5 LSTMs; 8 s of sound",
            ("miso:deepspeech2", "sia:deepspeech2", "zeus:deepspeech2"),
        ),
    ]


def _generative() -> list[ZooEntry]:
    return [
        ZooEntry(
            "dcgan",
            "gan",
            made("generative.dcgan"),
            (InputSpec((100, 1, 1)), InputSpec((3, 64, 64))),
            "arXiv:1511.06434, images of 64×64",
            ("lucid:DCGAN/LSUN",),
        ),
        ZooEntry(
            "cyclegan",
            "gan",
            made("generative.cyclegan"),
            (InputSpec((3, 256, 256)),) * 2,
            "arXiv:1703.10593",
            ("gavel:CycleGAN", "miso:cyclegan"),
            Published(
                None,
                2 * (11378000 + 2765000),
                "the authors' repository prints 11.378 M and 2.765 M, two of each",
            ),
        ),
    ]


def _others() -> list[ZooEntry]:
    one = InputSpec((), "int64", 3706)
    frames = (InputSpec((4, 84, 84)),)
    return [
        ZooEntry(
            "neumf",
            "recommender",
            made("other.neumf"),
            (one, one),
            "arXiv:1708.05031, MovieLens-1M",
            ("lucid:NeuMF/MovieLens", "ncf", "sia:ncf", "zeus:ncf"),
        ),
        ZooEntry(
            "autoencoder-ml20m",
            "recommender",
            made("other.autoencoder"),
            (InputSpec((20108,)),),
            "one hidden layer of 200 over the items of MovieLens-20M",
            ("gavel:Recommendation", "recommendation"),
        ),
        ZooEntry(
            "pointnet",
            "pointnet",
            made("other.pointnet"),
            (InputSpec((3, 1024)),),
            "arXiv:1612.00593",
            (),
            Published(440e6, 3500000, "arXiv:1612.00593, table 6 (in millions)"),
        ),
        ZooEntry(
            "gin-molpcba",
            "gnn",
            made("other.gin"),
            (InputSpec((32,), "int64", 119), InputSpec((32, 32))),
            "arXiv:1810.00826, graphs padded to 32 nodes",
            ("gnn", "miso:gnn"),
        ),
        ZooEntry(
            "ppo",
            "rl",
            made("other.ppo"),
            (InputSpec((8,)),),
            "arXiv:1707.06347, LunarLander",
            ("lucid:PPO/LunarLander",),
        ),
        ZooEntry(
            "td3",
            "rl",
            made("other.td3"),
            (InputSpec((24,)), InputSpec((4,))),
            "arXiv:1802.09477, BipedalWalker",
            ("lucid:TD3/BipedalWalker",),
        ),
        ZooEntry(
            "a3c",
            "rl",
            made("other.a3c"),
            (InputSpec((1, 42, 42)),),
            "arXiv:1602.01783, Pong",
            ("gavel:A3C",),
        ),
        ZooEntry(
            "a2c",
            "rl",
            made("other.atari_network", critic=True),
            frames,
            "Nature 518:529 with a critic",
            ("muri:a2c",),
        ),
        ZooEntry(
            "dqn", "rl", made("other.atari_network"), frames, "Nature 518:529", ("muri:dqn",)
        ),
        ZooEntry(
            "mlp", "mlp", made("other.mlp"), (InputSpec((784,)),), "784, 512, 512, 10; MNIST"
        ),
    ]
