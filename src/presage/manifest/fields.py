"""What one field of a manifest may hold: names, texts, amounts, commands, each checked by itself.

How fields belong together is in `schema`; amounts are read by `quantities`. Reads no file.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from presage.manifest import quantities
from presage.manifest.quantities import MOST_WORKERS, shown

__all__ = [
    "LONGEST_TEXT",
    "RESERVED",
    "URLS",
    "Command",
    "Gpus",
    "Memory",
    "MemoryOrAuto",
    "Name",
    "Patterns",
    "Seconds",
    "Text",
    "Types",
    "Url",
    "Variable",
    "VariableText",
    "Workers",
    "below_results",
    "image_name",
    "inside",
    "one_or_more",
    "webhook",
]

LONGEST_TEXT = 64 << 10

RESERVED = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "PRESAGE_ATTEMPT",
        "PRESAGE_CHECKPOINT_DIR",
        "PRESAGE_CHECKPOINT_EVERY",
        "PRESAGE_DATA_DIR",
        "PRESAGE_JOB_ID",
        "PRESAGE_PARAMS",
        "PRESAGE_PORT_TOKEN",
        "PRESAGE_PROGRESS",
        "PRESAGE_RANK",
        "PRESAGE_RESULT_DIR",
        "PRESAGE_ROLE",
        "PRESAGE_WORKERS",
    }
)
"""Variables that Presage itself sets for a worker."""


def _name(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,62}", value):
        raise ValueError(
            f"{shown(value)} is not a name: use at most 63 lower-case letters, digits, '-', '.' "
            "and '_', with a letter or digit first"
        )
    return value


def _variable(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", value):
        raise ValueError(f"{shown(value)} cannot be the name of an environment variable")
    if value in RESERVED or value.startswith("PRESAGE_PARAM_"):
        raise ValueError(f"{value} is set by Presage; choose another name")
    return value


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("a program cannot be given a NUL character")
    return value


def image_name(value: str) -> str:
    """An engine would take what starts with a dash for an option of its own."""
    if not re.match(r"[A-Za-z0-9]", value):
        raise ValueError(f"{shown(value)} is not an image: write one such as python:3.11-slim")
    return value


def _variable_text(value: object) -> object:
    """Numbers are taken as they are printed; YAML reads a bare yes, on or true as something else,
    so that has to be in quotes."""
    if isinstance(value, bool) or value is None:
        raise ValueError("put the text in quotes: YAML reads it as something else")
    return str(value) if isinstance(value, int | float) else value


def _command(value: Any) -> Any:
    words = value if isinstance(value, list) else [value]
    if not words or not all(isinstance(word, str) for word in words) or not words[0].strip():
        raise ValueError("write a command such as 'python train.py', or a list of its words")
    for word in words:
        _no_nul(word)
    return value


def one_or_more(value: object) -> object:
    return [value] if isinstance(value, str) else value


def inside(value: str) -> str:
    if not value or "\0" in value or ".." in PurePosixPath(value).parts:
        raise ValueError(f"write a directory without '..', not {shown(value)}")
    return value


def below_results(value: str) -> str:
    if value.startswith(("/", "~")):
        raise ValueError(f"write a directory below the results of the job, not {shown(value)}")
    return inside(value)


def webhook(value: str) -> str:
    if not re.match(r"https?://[^/\s]", quantities.url(value)):
        raise ValueError(f"write an http or https URL, not {shown(value)}")
    return value


_TIME = WithJsonSchema(
    {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}], "examples": ["90s", "2h"]}
)
_SPAN = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": MOST_WORKERS}, {"type": "string"}]}
URLS = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "object", "additionalProperties": {"type": "string"}},
    ]
}

Name = Annotated[str, AfterValidator(_name)]
Variable = Annotated[str, AfterValidator(_variable)]
Text = Annotated[str, AfterValidator(_no_nul)]
VariableText = Annotated[Text, BeforeValidator(_variable_text)]
Seconds = Annotated[float, BeforeValidator(quantities.duration_s), _TIME]
Memory = Annotated[
    str,
    BeforeValidator(quantities.memory),
    WithJsonSchema({"type": "string", "examples": ["2Gi"]}),
]
MemoryOrAuto = Annotated[
    str,
    BeforeValidator(quantities.memory_or_auto),
    WithJsonSchema({"type": "string", "examples": ["2Gi", "auto"]}),
]
Workers = Annotated[
    int | str, BeforeValidator(quantities.workers), WithJsonSchema({**_SPAN, "examples": ["2..8"]})
]
Gpus = Annotated[
    int | float | str,
    BeforeValidator(quantities.gpus),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "minimum": 0}, {"const": "auto"}], "examples": [1, 0.5]}
    ),
]
Command = Annotated[str | Annotated[list[str], Field(max_length=4096)], BeforeValidator(_command)]
Url = Annotated[str, AfterValidator(quantities.url)]
Patterns = Annotated[
    list[Annotated[str, Field(max_length=1024), AfterValidator(quantities.pattern)]],
    Field(max_length=100),
]
Types = Annotated[list[Annotated[Text, Field(min_length=1)]], Field(min_length=1, max_length=100)]
