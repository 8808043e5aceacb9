"""Questions of a web page, answered in a process of its own: `python -m presage.foresee.desk`.

A line of JSON comes in on stdin, a line of JSON goes out on stdout, one after the other, until
stdin ends. Models are only found by name: nothing here reads a path or runs code that a question
brings. Whoever asks is to give up after a while and end the process.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from presage.foresee.answer import OnGpu
from presage.foresee.gpus import Gpu, catalogue, find
from presage.foresee.graph import zoo
from presage.foresee.graph.load import find_model
from presage.foresee.graph.named import NamedModel
from presage.foresee.wishes import PlanWish, plan_wish, usual_precision, usual_seq
from presage.model.errors import GraphError, PresageError
from presage.model.setup import Setup

__all__ = ["answer", "check_name", "main"]

_NAME = re.compile(r"(zoo|hf):[A-Za-z0-9][\w.+-]{0,95}(?:/[\w.+-]{1,96})?", re.ASCII)
_KEPT = 4
_MOST_GRAPHS = 24
"""Graphs of a model that are kept; then it is found anew."""


def check_name(name: str) -> str:
    """The name of a model; code and files are refused."""
    plain = name.strip()
    if plain and ":" not in plain:
        plain = f"{'zoo' if _in_zoo(plain) else 'hf'}:{plain}"
    if not _NAME.fullmatch(plain) or ".." in plain:
        raise GraphError(
            "name a model, like hf:meta-llama/Llama-3.1-8B or zoo:resnet50; code and files are "
            "for `presage predict`"
        )
    return plain


def _in_zoo(name: str) -> bool:
    try:
        zoo.find(name)
    except GraphError:
        return False
    return True


def answer(task: Mapping[str, Any]) -> dict[str, Any]:
    """What a task is answered with: a value, or an error in one line."""
    kinds: dict[str, Callable[[Mapping[str, Any]], Any]] = {
        "names": _names,
        "look": _look,
        "plan": _plan,
    }
    try:
        return {"value": kinds[task["kind"]](task["question"])}
    except PresageError as refused:
        return {"error": " ".join(str(refused).split())}


def main() -> None:
    """Answer until nobody asks any more."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin:
        said = answer(json.loads(line))
        out.write(json.dumps(said, allow_nan=False) + "\n")
        out.flush()


def _names(question: Mapping[str, Any]) -> dict[str, list[str]]:
    """Models and GPUs to choose from."""
    from presage.foresee.graph.architectures import known_architectures

    known = [f"hf:{name}" for name in known_architectures()]
    return {"models": known + [f"zoo:{name}" for name in zoo.names()], "gpus": list(catalogue())}


def _look(question: Mapping[str, Any]) -> dict[str, Any]:
    """Memory, time and money of one set-up."""
    from presage.foresee import predict

    named = _model(question["model"])
    options = dict(question["options"])
    serves = bool(options.get("inference"))
    if serves and named.decoder is None:
        raise GraphError(f"{named.name} is no language model: tokens are served by those alone")
    if options.get("seq") is None and not serves:
        options["seq"] = usual_seq(named)
    usual = "bf16" if serves else usual_precision(named)
    setup = Setup.make(**{"precision": usual, **options})
    gpus = [find(name) for name in question["gpus"]]
    batch = int(question["batch"])
    largest = bool(question.get("largest"))
    said = predict.predict_model(named, batch, gpus, setup, largest=largest)
    return {
        "name": said.name,
        "params": said.params,
        "seq": setup.seq,
        "precision": setup.precision,
        "assumptions": list(said.assumptions),
        "evidence": list(said.evidence),
        "gpus": [_on(said.gpus[gpu.name], gpu) for gpu in gpus],
    }


def _on(on: OnGpu, gpu: Gpu) -> dict[str, Any]:
    per_s = on.tokens_per_s or on.samples_per_s
    return {
        "name": gpu.name,
        "room_mib": gpu.usable_mib,
        "memory_mib": asdict(on.memory_mib),
        "breakdown": {part: float(size) for part, size in on.breakdown.items()},
        "chance_fits": on.chance_fits,
        "reason": on.reason,
        "step_ms": asdict(on.step_ms),
        "per_s": None if per_s is None else asdict(per_s),
        "unit": "samples" if on.tokens_per_s is None else "tokens",
        "gpu_util_pct": asdict(on.gpu_util_pct),
        "max_batch": on.max_batch,
        "cost": None if on.cost is None else asdict(on.cost),
        "domain": asdict(on.domain),
    }


def _plan(question: Mapping[str, Any]) -> dict[str, Any]:
    """The plan of a wish."""
    wish = dict(question["wish"])
    gpus = tuple(find(name) for name in question["gpus"])
    made = plan_wish(
        _model(question["model"]), PlanWish(gpus, **wish, options=question["options"])
    )
    front = [option.to_dict() for option in made.options]
    return {
        "name": made.name,
        "heads": list(made.heads),
        "rows": [[name, *cells] for name, cells in made.rows()],
        "options": front,
        "labels": [f"{option.label}, batch {option.batch_text}" for option in made.options],
        "cheapest": made.cheapest and made.cheapest.label,
        "fastest": made.fastest and made.fastest.label,
        "left_out": dict(made.left_out),
        "assumptions": list(made.assumptions),
    }


def _model(name: str) -> NamedModel:
    named = _found(check_name(name))
    if len(named._graphs) > _MOST_GRAPHS:
        _found.cache_clear()
        named = _found(check_name(name))
    return named


@lru_cache(_KEPT)
def _found(name: str) -> NamedModel:
    return find_model(name)


if __name__ == "__main__":
    main()
