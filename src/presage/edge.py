"""YAML that people wrote, read at the edge: checked against a pydantic model, and every mistake is
one line that names the file, the line and what to do.

Loads plain data only. Knows no model of ours; policies and simulator bring theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from presage.model.errors import UserError

__all__ = ["read_yaml"]

M = TypeVar("M", bound=BaseModel)
_MOST_BYTES = 16 << 20
_RANK = {"extra_forbidden": 0, "literal_error": 2, "dict_type": 3}
"""Which of several problems to tell; others are 1. Where a name or a mapping would do, both are
problems, and the one that came closer says more."""


def read_yaml(path: Path, model: type[M], error: type[UserError]) -> M:
    """The file as a model; anything wrong with it raises `error`."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise error(f"{path} is larger than {_MOST_BYTES >> 20} MiB")
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        _refuse_repeats(path, root, error)
        data = yaml.constructor.SafeConstructor().construct_document(root) if root else None
    except yaml.YAMLError as broken:
        mark = getattr(broken, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark is not None else ""
        problem = getattr(broken, "problem", None) or str(broken).splitlines()[0]
        raise error(f"{path}{where}: broken YAML: {problem}") from None
    except RecursionError:
        raise error(f"{path} cannot be read: it is nested too deeply") from None
    except (OSError, UnicodeDecodeError) as broken:
        says = getattr(broken, "strerror", None) or str(broken).splitlines()[0]
        raise error(f"{path} cannot be read: {says}") from None
    if not isinstance(data, dict):
        keys = " or ".join(model.model_fields)
        raise error(f"{path} line 1: write a mapping with the key {keys}")
    try:
        return model.model_validate(data)
    except ValidationError as wrong:
        raise error(_explained(path, root, model, wrong)) from None


def _refuse_repeats(path: Path, root: yaml.Node | None, error: type[UserError]) -> None:
    """YAML's loader keeps the last of two equal keys and says nothing; we say it."""
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            keys: set[str] = set()
            for key, value in node.value:
                name = str(key.value)
                if name in keys:
                    line = key.start_mark.line + 1
                    raise error(f"{path} line {line}: key {name} is there twice")
                keys.add(name)
                waiting.append(value)


def _explained(
    path: Path, root: yaml.Node | None, model: type[BaseModel], error: ValidationError
) -> str:
    """One line for the first problem; a misspelt key explains the others, so it goes first."""
    problems = error.errors(include_url=False)
    first = min(problems, key=lambda problem: _RANK.get(problem["type"], 1))
    line, place = _find(root, first["loc"])
    if first["type"] == "missing":
        place.append(str(first["loc"][-1]))
    where = f"{path} line {line}: {'.'.join(place)}".rstrip(": ")
    if first["type"] == "extra_forbidden":
        known = _model_at(model, first["loc"][:-1]).model_fields
        near = get_close_matches(str(first["loc"][-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(known)}"
        return f"{where}: unknown key; {hint}"
    if first["type"] == "model_type":
        keys = ", ".join(_model_at(model, first["loc"]).model_fields)
        return f"{where}: write a mapping with keys such as {keys}"
    says = first["msg"].removeprefix("Value error, ")
    return f"{where}: {says[0].lower()}{says[1:]}"


def _find(root: yaml.Node | None, location: Sequence[int | str]) -> tuple[int, list[str]]:
    """The line of a place in the file, and the part of its path that the file has."""
    line, node = 1, root
    place: list[str] = []
    for part in location:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part]
            line = node.start_mark.line + 1
        elif isinstance(node, yaml.MappingNode):
            found = [(k, v) for k, v in node.value if str(k.value) == str(part)]
            if not found:
                continue  # a part that pydantic added, such as the branch of a union
            line, node = found[0][0].start_mark.line + 1, found[0][1]
        else:
            continue
        place.append(str(part))
    return line, place


def _model_at(model: type[BaseModel], location: Sequence[int | str]) -> type[BaseModel]:
    """The model that describes a place."""
    for part in location:
        field = model.model_fields.get(str(part))
        inner = _model_in(field.annotation) if field is not None else None
        model = inner or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for arg in get_args(annotation) if (m := _model_in(arg))), None)
