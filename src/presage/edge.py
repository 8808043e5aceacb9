"""What people wrote, read at the edge: checked against a pydantic model, and every mistake is one
line that names the source, the line and what to do.

Loads plain data only, and counts what a text would become before it builds anything: a small text
cannot grow into a large value. Knows no model of ours; policies and simulator bring theirs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from presage.model.errors import UserError

__all__ = [
    "FILE_LIMITS",
    "YamlLimits",
    "check",
    "load_json",
    "load_yaml",
    "misplaced",
    "parse_json",
    "parse_yaml",
    "read_bytes",
    "read_yaml",
]

M = TypeVar("M", bound=BaseModel)
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LONGEST_LINE = 400
_RANK = {"extra_forbidden": 0, "literal_error": 2, "dict_type": 3}
"""Which of several problems to tell; others are 1. Where a name or a mapping would do, both are
problems, and the one that came closer says more."""


@dataclass(frozen=True, slots=True)
class YamlLimits:
    """What a text may hold; beyond that it is refused. An alias counts as all it stands for."""

    bytes: int
    nodes: int
    depth: int


FILE_LIMITS = YamlLimits(bytes=16 << 20, nodes=2_000_000, depth=100)
"""For files of the person who runs the command."""


def read_yaml(
    path: Path, model: type[M], error: type[UserError], limits: YamlLimits = FILE_LIMITS
) -> M:
    """The file as a model; anything wrong with it raises `error`."""
    return parse_yaml(read_bytes(path, error, limits), model, error, str(path), limits)


def read_bytes(path: Path, error: type[UserError], limits: YamlLimits) -> bytes:
    """What is in a file that is not too large; anything wrong with it raises `error`."""
    try:
        if path.stat().st_size > limits.bytes:
            raise error(f"{path} is larger than {limits.bytes >> 20} MiB")
        return path.read_bytes()
    except (OSError, ValueError) as broken:
        says = getattr(broken, "strerror", None) or str(broken)
        raise error(_one_line(f"{path} cannot be read: {says}")) from None


def parse_yaml(
    text: bytes | str, model: type[M], error: type[UserError], source: str, limits: YamlLimits
) -> M:
    """The YAML text as a model; messages call it `source`."""
    data, root = load_yaml(text, error, source, limits)
    return check(data, model, error, source, root)


def load_yaml(
    text: bytes | str, error: type[UserError], source: str, limits: YamlLimits
) -> tuple[Any, yaml.Node | None]:
    """The YAML text as plain data, and as the nodes that know its lines."""
    text = _decoded(text, error, source, limits)
    try:
        _refuse_bombs(text, error, source, limits)
        root = yaml.compose(text, Loader=_LOADER)
        _refuse_repeats(root, error, source)
        data = yaml.constructor.SafeConstructor().construct_document(root) if root else None
    except yaml.YAMLError as broken:
        mark = getattr(broken, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark is not None else ""
        problem = getattr(broken, "problem", None) or str(broken).splitlines()[0]
        raise error(_one_line(f"{source}{where}: broken YAML: {problem}")) from None
    except RecursionError:
        raise error(f"{source} cannot be read: it is nested too deeply") from None
    except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError) as broken:
        # PyYAML lets these out for a scalar that is not what its tag or its looks say: !!int x
        raise error(_one_line(f"{source}: broken YAML: bad value: {broken}")) from None
    return data, root


def parse_json(
    text: bytes | str, model: type[M], error: type[UserError], source: str, limits: YamlLimits
) -> M:
    """The JSON text as a model; messages call it `source`."""
    return check(load_json(text, error, source, limits), model, error, source)


def load_json(text: bytes | str, error: type[UserError], source: str, limits: YamlLimits) -> Any:
    """The JSON text as plain data."""
    text = _decoded(text, error, source, limits)

    def no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for name, value in pairs:
            if name in mapping:
                raise error(_one_line(f"{source}: key {name} is there twice"))
            mapping[name] = value
        return mapping

    try:
        return json.loads(text, object_pairs_hook=no_repeats)
    except json.JSONDecodeError as broken:
        raise error(f"{source} line {broken.lineno}: broken JSON: {broken.msg}") from None
    except RecursionError:
        raise error(f"{source} cannot be read: it is nested too deeply") from None
    except ValueError as broken:  # a number with thousands of digits
        raise error(_one_line(f"{source}: broken JSON: {broken}")) from None


def check(
    data: object,
    model: type[M],
    error: type[UserError],
    source: str,
    root: yaml.Node | None = None,
) -> M:
    """Plain data as a model; `root`, the YAML it came from, gives the lines of mistakes."""
    if not isinstance(data, Mapping):
        keys = list(model.model_fields)
        few = f"the key {' or '.join(keys)}"
        wanted = few if len(keys) <= 5 else f"keys such as {', '.join(keys[:5])}"
        line = " line 1" if root is not None or data is None else ""
        raise error(f"{source}{line}: write a mapping with {wanted}")
    try:
        return model.model_validate(data)
    except ValidationError as wrong:
        said = _explained(source, data, root, model, wrong)
        first, *all_of_them = said
        told = error(first)
        told.mistakes = tuple(all_of_them)
        raise told from None


def misplaced(says: str, *at: str) -> PydanticCustomError:
    """For the validator of a whole model to raise: what is wrong, and at which of its keys."""
    return PydanticCustomError("misplaced", "{says}", {"says": says, "at": at})


def _decoded(text: bytes | str, error: type[UserError], source: str, limits: YamlLimits) -> str:
    if len(text) > limits.bytes:
        raise error(f"{source} is larger than {limits.bytes >> 20} MiB")
    try:
        return text if isinstance(text, str) else text.decode("utf-8-sig")
    except UnicodeDecodeError as broken:
        raise error(f"{source} cannot be read: {broken}") from None


def _refuse_bombs(text: str, error: type[UserError], source: str, limits: YamlLimits) -> None:
    """Walk through the text without building anything, and count what it would become."""
    nodes = 0
    complete: dict[str, tuple[int, int]] = {}  # anchor → nodes and levels it stands for
    open_: list[tuple[str | None, int]] = []  # anchor, and the count when it was opened
    levels: list[int] = [0]  # of what is inside each open collection
    for event in yaml.parse(text, Loader=_LOADER):
        size, height = 1, 1
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, nodes))
            levels.append(0)
            complete.pop(event.anchor or "", None)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_.pop()
            height = levels.pop() + 1
            size = 0
            if anchor is not None:
                complete[anchor] = (nodes - before, height)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in complete:
                line = f" line {event.start_mark.line + 1}" if event.start_mark else ""
                says = f"*{event.anchor} stands for nothing that is complete above it"
                raise error(_one_line(f"{source}{line}: {says}"))
            size, height = complete[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            if event.anchor is not None:
                complete[event.anchor] = (1, 1)
        else:
            continue
        nodes += size
        levels[-1] = max(levels[-1], height)
        if nodes > limits.nodes:
            raise error(f"{source} cannot be read: it holds more than {limits.nodes:,} values")
        if len(open_) + height > limits.depth:
            raise error(f"{source} cannot be read: it is nested too deeply")


def _refuse_repeats(root: yaml.Node | None, error: type[UserError], source: str) -> None:
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
                    raise error(_one_line(f"{source} line {line}: key {name} is there twice"))
                keys.add(name)
                waiting.append(value)


def _explained(
    source: str,
    data: object,
    root: yaml.Node | None,
    model: type[BaseModel],
    error: ValidationError,
) -> list[str]:
    """A line for each place that is wrong, in the order of the text, after the one that says most:
    a misspelt key explains the others."""
    lines: dict[tuple[str, ...], tuple[int, int, str]] = {}
    for problem in error.errors(include_url=False):
        location = [*problem["loc"], *problem.get("ctx", {}).get("at", ())]
        line, place = _find(root, location) if root else (0, _place(data, location))
        if problem["type"] == "missing":
            place.append(str(problem["loc"][-1]))
        where = f"{source} line {line}" if root else source
        says = _said(f"{where}: {'.'.join(place)}".rstrip(": "), model, problem)
        told = (_RANK.get(problem["type"], 1), line, _one_line(says))
        lines[tuple(place)] = min(told, lines.get(tuple(place), told), key=lambda item: item[0])
    told_first = min(lines.values(), key=lambda item: item[0])
    return [item[2] for item in (told_first, *sorted(lines.values(), key=lambda i: i[1]))]


def _said(where: str, model: type[BaseModel], problem: Any) -> str:
    """One line for one problem."""
    kind, place, says = problem["type"], problem["loc"], problem["msg"]
    if kind == "extra_forbidden":
        known = _model_at(model, place[:-1]).model_fields
        near = get_close_matches(str(place[-1])[:100], known, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(known)}"
        return f"{where}: unknown key; {hint}"
    if kind == "model_type":
        keys = ", ".join(_model_at(model, place).model_fields)
        return f"{where}: write a mapping with keys such as {keys}"
    if kind in ("value_error", "misplaced"):  # said by a schema of ours
        return f"{where}: {says.removeprefix('Value error, ')}"
    return f"{where}: {says[0].lower()}{says[1:]}"


def _place(data: object, location: Sequence[int | str]) -> list[str]:
    """The part of a path that the data has; pydantic adds others, such as the branch of a
    union."""
    place: list[str] = []
    for part in location:
        try:
            data = data[part]  # type: ignore[index]  # what cannot be looked into is an error too
        except (LookupError, TypeError):
            continue
        place.append(str(part))
    return place


def _find(root: yaml.Node, location: Sequence[int | str]) -> tuple[int, list[str]]:
    """The line of a place in the text, and the part of its path that the text has."""
    line, node = 1, root
    place: list[str] = []
    for part in location:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            if part >= len(node.value):
                break  # the model put a list in another order or length
            node = node.value[part]
            line = node.start_mark.line + 1
        elif isinstance(node, yaml.MappingNode):
            pairs = [(k, v) for k, v in node.value if str(k.value) == str(part)]
            if not pairs:
                continue  # a part that pydantic added
            line, node = pairs[0][0].start_mark.line + 1, pairs[0][1]
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


def _one_line(text: str) -> str:
    """What people sent, fit for a terminal and a log: one line, printable, not too long."""
    text = "".join(c if c.isprintable() else " " for c in text[: 4 * _LONGEST_LINE])
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]} …"
