"""Make src/presage/foresee/known_models.npz: operators and memory features of timm's models.

A tool for the workshop, run by hand where timm is installed (`pip install --no-deps timm`, then
huggingface_hub, safetensors, pillow). timm wants torchvision at import, which is not needed for
graphs: its modules are replaced by empty ones. One second a model.

    python tools/known_models.py
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

from presage.foresee.graph.opgraph import InputSpec
from presage.foresee.graph.torch_trace import trace
from presage.foresee.memory import memory_features
from presage.foresee.steptime import Operators
from presage.model.errors import UserError

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MISNAMED: dict[str, dict[str, Any]] = {
    f"ig_resnext101_32x{width}d": {"model_name": "resnext101_32x32d", "base_width": width}
    for width in (16, 32, 48)
}
"""Names that timm retired and now gives to a smaller model (resnext101_32x8d)."""
OUT = Path(__file__).resolve().parent.parent / "src/presage/foresee/known_models.npz"


class _AnyAttribute(type):
    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Empty(types.ModuleType):
    """A module that has every class anyone asks for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _AnyAttribute(name, (), {"__init__": lambda self, *args, **kwargs: None})
        setattr(self, name, made)
        return made


def _without_torchvision() -> None:
    parts = "transforms transforms.functional transforms.v2 datasets datasets.folder models"
    more = "models.feature_extraction ops ops.misc utils"
    names = ["torchvision", *(f"torchvision.{part}" for part in f"{parts} {more}".split())]
    for name in names:
        module = _Empty(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__path__ = []
        sys.modules[name] = module
    for name in names[1:]:
        parent, _, child = name.rpartition(".")
        setattr(sys.modules[parent], child, sys.modules[name])


def main() -> None:
    """Trace every model and write the file."""
    _without_torchvision()
    import timm  # type: ignore[import-not-found]
    import torch

    retired = timm.models._registry._deprecated_models
    kept: dict[str, tuple[Any, ...]] = {}
    for name in sorted({*timm.list_models(), *retired}):
        try:
            with torch.device("meta"):
                model = timm.create_model(**MISNAMED.get(name, {"model_name": name}))
            size = tuple(model.pretrained_cfg["input_size"])
            graph = trace(model, (InputSpec(size),), name=name)
        except (UserError, RuntimeError, TypeError, KeyError) as error:
            print(f"{name}: left out: {str(error)[:120]}", file=sys.stderr)
            continue
        rows = Operators.of(graph).rows().astype(np.float32)
        features = [memory_features(graph, batch) for batch in BATCHES]
        kept[name] = (rows, graph.params, size[-1], features)
    operators, params, sizes, memory = zip(*kept.values(), strict=True)
    np.savez_compressed(
        OUT,
        names=np.array(list(kept)),
        operators=np.concatenate(operators),
        offsets=np.cumsum([0, *map(len, operators)]).astype(np.int32),
        params=np.array(params, np.int64),
        size=np.array(sizes, np.int32),
        memory=np.array(memory, np.float32),
        batches=np.array(BATCHES, np.int32),
    )
    print(f"{len(kept)} models written to {OUT}")


if __name__ == "__main__":
    main()
