"""A graph from whatever a user names: a function in a file or module, an ONNX file, a Hugging Face
configuration, or an entry of the zoo.

A user's function runs in another process with limits (`presage.foresee.sandbox`).
"""

from __future__ import annotations

import base64
import importlib
import importlib.util
import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from presage.foresee.graph import precomputed, zoo
from presage.foresee.graph.architectures import find_architecture
from presage.foresee.graph.decoder_configs import shape_from_config
from presage.foresee.graph.decoder_graph import busiest_graph
from presage.foresee.graph.decoders import DECODER_TYPES
from presage.foresee.graph.huggingface import config_name, read_json
from presage.foresee.graph.named import NamedModel
from presage.foresee.graph.opgraph import KINDS, InputSpec, OpGraph
from presage.foresee.sandbox import run_isolated
from presage.foresee.sharding import shard
from presage.model.errors import ConfigError, GraphError, MissingExtra
from presage.model.setup import LoraAdapter, Parallelism, Setup

__all__ = [
    "find_data_model",
    "find_model",
    "load_graph",
    "on_one_rank",
    "read_data",
    "trace_factory",
    "trace_options",
]

_TIMEOUT_S = 120.0
_MEMORY_MIB = 16384
_FORMS = "file.py:function, package.module:function, model.onnx, config.json or zoo:resnet50"


def find_model(
    target: str, *, inputs: str | None = None, timeout_s: float = _TIMEOUT_S
) -> NamedModel:
    """The model of a target; its graphs are made when they are asked for. Decoder language models
    need no PyTorch."""
    config = _config_of(target)
    if config is not None and inputs is None and config[1].get("model_type") in DECODER_TYPES:
        return _decoder(*config)

    def build(setup: Setup) -> OpGraph:
        return on_one_rank(
            lambda: load_graph(target, inputs=inputs, timeout_s=timeout_s, **trace_options(setup)),
            setup,
        )

    return NamedModel(target, build)


def on_one_rank(trace: Callable[[], OpGraph], setup: Setup) -> OpGraph:
    """The graph of one of the GPUs that divide a traced model among them; what only a language
    model that is known by its configuration can be asked is refused before it is traced."""
    cut = setup.parallel
    asked = {
        "--lora": setup.lora is not None,
        "--quant": setup.quant != "none",
        "--loss chunked": setup.loss != "full",
        "--kv-len": setup.kv_len is not None,
        "a split by tp, pp, cp or ep": max(cut.tensor, cut.pipeline, cut.context, cut.expert) > 1,
    }
    for name in (name for name, wanted in asked.items() if wanted):
        raise ConfigError(
            f"{name} is for decoder language models: name one as hf:meta-llama/Llama-3.1-8B, or "
            "give its config.json"
        )
    graph = trace()
    _check_kinds(graph, setup)
    return shard(graph, setup)


def _check_kinds(graph: OpGraph, setup: Setup) -> None:
    """Refuse to be asked how operators run that the model does not have."""
    there = {KINDS[kind] for kind in set(graph.kind.tolist())}
    if setup.attention != "sdpa" and not there & {"attention", "matmul"}:
        raise ConfigError(
            f"{graph.name} has no attention: leave --attention {setup.attention} out"
        )
    if setup.layout != "nchw" and not there & _OF_IMAGES:
        raise ConfigError(f"{graph.name} reads no images: leave --layout {setup.layout} out")


_OF_IMAGES = {"conv", "pointwise", "depthwise", "grouped", "pool"}


def trace_options(setup: Setup) -> dict[str, Any]:
    """What of a set-up changes the graph that is traced on one GPU; what is left at its default is
    left out."""
    said: dict[str, Any] = {
        "optimizer": setup.optimizer,
        "precision": setup.precision,
        "inference": setup.inference,
        "accumulate": setup.accumulate,
        "checkpointing": setup.checkpoint,
        "attention": setup.attention,
        "layout": setup.layout,
        "compile": setup.compile,
        "seq": setup.seq,
    }
    return {name: value for name, value in said.items() if value != _PLAIN.get(name)}


_PLAIN = {
    "accumulate": 1,
    "checkpointing": "none",
    "attention": "sdpa",
    "layout": "nchw",
    "compile": False,
}


def _config_of(target: str) -> tuple[str, Mapping[str, Any]] | None:
    """Name and configuration of `hf:NAME` or a .json file; None for any other target."""
    if target.startswith("hf:"):
        architecture = find_architecture(target)
        return architecture.name, architecture.config
    if target.lower().endswith(".json"):
        return config_name(_file(target)), read_json(_file(target))
    return None


def _decoder(name: str, config: Mapping[str, Any]) -> NamedModel:
    shape = shape_from_config(config, name)

    def build(setup: Setup) -> OpGraph:
        return busiest_graph(shape, setup)

    return NamedModel(name, build, shape)


def load_graph(
    target: str,
    *,
    inputs: str | None = None,
    seq: int | None = None,
    timeout_s: float = _TIMEOUT_S,
    **options: Any,
) -> OpGraph:
    """The graph of a target; anything wrong with it is a `UserError` of one line.

    `inputs` describes one sample, like `3x224x224` or `128:int64,128:int64`; `seq` says the tokens
    of a sample alone. `options` are those of `torch_trace.trace`.
    """
    specs = None if inputs is None else InputSpec.parse(inputs)
    kind, _, rest = target.partition(":")
    if kind == "zoo":
        entry = zoo.find(rest)
        return _from_zoo(entry, specs or _with_length(target, entry.inputs, seq), options)
    if kind == "hf" or target.lower().endswith(".json"):
        from presage.foresee.graph.huggingface import read_config

        config = _config_of(target)
        assert config is not None
        _need_torch()
        return read_config(config[1], name=config[0], inputs=specs, seq=seq, **options)
    if seq is not None:
        raise ConfigError(
            "--seq is for models that are known by their names or configurations: give the shape "
            "of a sample with --input 4096:int64"
        )
    if target.lower().endswith(".onnx"):
        from presage.foresee.graph.onnx_reader import read_onnx

        path = _file(target)
        _need_torch()
        return read_onnx(path, inputs=specs, **options)
    place, _, function = target.rpartition(":")
    if not place or not function:
        raise GraphError(f"'{target}' names no model: {_near_zoo(target)}write {_FORMS}")
    if place.endswith(".py"):
        _file(place)
    _need_torch()
    payload = {"place": place, "function": function, "inputs": inputs, "options": options}
    answer = run_isolated(
        __name__,
        "trace_factory",
        payload,
        timeout_s=timeout_s,
        memory_mib=_MEMORY_MIB,
        subject=target,
    )
    return OpGraph.from_bytes(base64.b64decode(answer["graph"]))


def _near_zoo(name: str) -> str:
    try:
        return f"did you mean zoo:{zoo.find(name).name}? Otherwise "
    except GraphError:
        return ""


def _file(name: str) -> Path:
    path = Path(name)
    if path.is_dir():
        raise GraphError(f"{name} is a directory; name a file")
    if not path.is_file():
        raise GraphError(f"{name} does not exist; give the path of a file")
    return path


def _need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("torch", "reading the graph of a model")
    _silence_torch()


def _silence_torch() -> None:
    """PyTorch logs what a wrong shape leads to before it raises; the exception says it all."""
    logging.getLogger("torch._subclasses.fake_tensor").disabled = True


def _with_length(
    target: str, inputs: tuple[InputSpec, ...], seq: int | None
) -> tuple[InputSpec, ...]:
    """The inputs of a model that reads tokens, with so many of them."""
    if seq is None:
        return inputs
    if any(spec.dtype != "int64" or len(spec.shape) != 1 for spec in inputs):
        raise ConfigError(f"{target} does not read tokens: leave --seq out, or use --input")
    return tuple(replace(spec, shape=(seq,)) for spec in inputs)


def _from_zoo(
    entry: zoo.ZooEntry, specs: tuple[InputSpec, ...], options: dict[str, Any]
) -> OpGraph:
    known = {"optimizer", "precision", "inference"}
    if specs == entry.inputs and not set(options) - known:
        graph = precomputed.read(entry, **options)
        if graph is not None:
            return graph
    _need_torch()
    from presage.foresee.graph.torch_trace import trace

    return trace(entry.build, specs, name=entry.name, **options)


def find_data_model(target: str, *, timeout_s: float = _TIMEOUT_S) -> NamedModel:
    """A model by its name, or of a .onnx or .json file that nobody vouches for: such a file is
    turned into a graph by a child process. Code of users is neither imported nor run."""
    if target.startswith(("zoo:", "hf:")):
        return find_model(target, timeout_s=timeout_s)
    if not target.lower().endswith((".onnx", ".json")):
        raise GraphError(
            f"'{target}' is not data: name a zoo model, hf:NAME, a .onnx or a .json file"
        )

    def build(setup: Setup) -> OpGraph:
        answer = run_isolated(
            __name__,
            "read_data",
            {"target": target, "setup": asdict(setup)},
            timeout_s=timeout_s,
            memory_mib=_MEMORY_MIB,
            subject=target,
        )
        return OpGraph.from_bytes(base64.b64decode(answer["graph"]))

    config = _config_of(target)
    if config is None or config[1].get("model_type") not in DECODER_TYPES:
        return NamedModel(target, build)
    return NamedModel(config[0], build, shape_from_config(config[1], config[0]))


# -- in the child process


def read_data(payload: dict[str, Any]) -> dict[str, str]:
    """The graph of data; runs in a process of its own."""
    said = dict(payload["setup"])
    said["parallel"] = Parallelism(**said["parallel"])
    if said["lora"] is not None:
        said["lora"] = LoraAdapter(**said["lora"] | {"targets": tuple(said["lora"]["targets"])})
    graph = find_model(payload["target"]).graph(Setup(**said))
    return {"graph": base64.b64encode(graph.to_bytes()).decode()}


def trace_factory(payload: dict[str, Any]) -> dict[str, str]:
    """Import a user's function, build its model and trace it; runs in a process of its own, which
    explains what the user's code raises."""
    from presage.foresee.graph.torch_trace import trace

    _silence_torch()
    place, name = payload["place"], payload["function"]
    target = f"{place}:{name}"
    factory = _find_function(_import(place), place, name)
    made, build = _make(factory)
    module, inputs = _split(made)
    _check_module(module, target)
    given = payload["inputs"]
    specs = InputSpec.parse(given) if given is not None else _specs(inputs, target)
    graph = trace(build, specs, name=name, **payload["options"])
    return {"graph": base64.b64encode(graph.to_bytes()).decode()}


def _import(place: str) -> Any:
    """The module of a file or a dotted name; modules beside it, or here, can be imported too."""
    if not place.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name and (place == error.name or place.startswith(f"{error.name}.")):
                raise GraphError(
                    f"there is no module {place}: install it, or give the path of a file"
                ) from None
            raise
    path = Path(place).resolve()
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise GraphError(f"{place} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _find_function(module: Any, place: str, name: str) -> Callable[[], Any]:
    target = getattr(module, name, None)
    if target is None:
        mine = [key for key, value in vars(module).items() if callable(value)]
        mine = [key for key in mine if not key.startswith("_")]
        near = get_close_matches(name, mine, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(mine[:8]) or 'none'}"
        raise GraphError(f"{place} has no function '{name}': {hint}")
    if not callable(target):
        raise GraphError(
            f"{place}:{name} is a {type(target).__name__}, not a function: "
            "write a function without arguments that returns the model"
        )
    try:
        inspect.signature(target).bind()
    except TypeError as error:
        raise GraphError(
            f"{place}:{name} needs arguments ({error}): write a function without arguments"
        ) from None
    except ValueError:
        pass  # a function of C has no signature to look at
    function: Callable[[], Any] = target
    return function


def _make(factory: Callable[[], Any]) -> tuple[Any, Any]:
    """What the factory returns, and what to trace: if possible without ever holding values, else
    the module itself."""
    import torch

    try:
        with torch.device("meta"):
            return factory(), lambda: _split(factory())[0]
    except (NotImplementedError, RuntimeError, TypeError):  # it looks at values while it builds
        made = factory()
        return made, _split(made)[0]


def _split(made: Any) -> tuple[Any, Any]:
    """(module, inputs) of what a factory returned; inputs may be None."""
    if isinstance(made, tuple) and len(made) == 2:
        return made[0], made[1]
    return made, None


def _check_module(module: Any, target: str) -> None:
    import torch

    if not isinstance(module, torch.nn.Module):
        raise GraphError(
            f"{target} returned a {type(module).__name__}: it must return a torch module, "
            "or a module and its inputs"
        )


def _specs(inputs: Any, target: str) -> tuple[InputSpec, ...]:
    """Input specifications from example tensors (batch first), strings or specifications."""
    if inputs is None:
        raise GraphError(
            f"{target} returns a model without inputs: add --input, like --input 3x224x224, "
            "or return (model, inputs)"
        )
    parts: Sequence[Any] = inputs if isinstance(inputs, (list, tuple)) else (inputs,)
    specs: list[InputSpec] = []
    for part in parts:
        if isinstance(part, InputSpec):
            specs.append(part)
        elif isinstance(part, str):
            specs += InputSpec.parse(part)
        elif hasattr(part, "dtype") and getattr(part, "ndim", 0) >= 1:
            dtype = str(part.dtype).removeprefix("torch.")
            shape = "x".join(str(size) for size in part.shape[1:])
            specs += InputSpec.parse(f"{shape}:{dtype}")
        else:
            raise GraphError(
                f"{target} returns an input of type {type(part).__name__}: give tensors with the "
                "batch first, or text like 3x224x224"
            )
    return tuple(specs)
