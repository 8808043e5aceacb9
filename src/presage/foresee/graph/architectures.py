"""Models by the names people use: a configuration from the Hugging Face cache, else from the
bundled table of much used architectures. Never asks a network and never reads weights."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from presage.edge import read_yaml
from presage.model.errors import GraphError

__all__ = ["KnownArchitecture", "find_architecture", "known_architectures"]

_TABLE = Path(__file__).with_name("architectures.yaml")
_MOST_BYTES = 1 << 20
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.\-]*/[\w.\-]+")


@dataclass(frozen=True, slots=True)
class KnownArchitecture:
    """A model's configuration, and where it was found."""

    name: str
    config: Mapping[str, Any]
    origin: str
    """`cache` or `table`."""
    published_params: float | None = None


class _ArchitectureEntry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    params: float = Field(gt=0)
    aliases: list[str] = Field(default_factory=list)
    like: str | None = None
    config: dict[str, Any] = Field(default_factory=dict)


class _ArchitectureTable(BaseModel):
    model_config = ConfigDict(extra="forbid")

    models: dict[str, _ArchitectureEntry]


def find_architecture(name: str) -> KnownArchitecture:
    """The configuration of `meta-llama/Llama-3.1-8B`, `llama-3.1-8b` or another spelling of it;
    one line with the nearest names if nobody knows it."""
    wanted = name.strip().removeprefix("hf:")
    cached = _from_cache(wanted)
    if cached is not None:
        return KnownArchitecture(wanted, cached, "cache")
    names = _names()
    full = names.get(_key(wanted)) or names.get(_key(wanted.rpartition("/")[2]))
    if full is None:
        near = get_close_matches(_key(wanted.rpartition("/")[2]), names, n=3, cutoff=0.6)
        hint = " or ".join(dict.fromkeys(names[key] for key in near))
        ask = f"did you mean {hint}? " if hint else ""
        raise GraphError(
            f"no configuration of '{wanted}' is known here: {ask}"
            "give the path of its config.json, or download it into the Hugging Face cache"
        )
    return known_architectures()[full]


@cache
def _table() -> dict[str, _ArchitectureEntry]:
    return read_yaml(_TABLE, _ArchitectureTable, GraphError).models


@cache
def known_architectures() -> dict[str, KnownArchitecture]:
    """The bundled table by full name."""
    entries = _table()
    return {
        name: KnownArchitecture(name, _config(entries, name), "table", entry.params)
        for name, entry in entries.items()
    }


def _config(entries: Mapping[str, _ArchitectureEntry], name: str) -> dict[str, Any]:
    entry = entries[name]
    base = _config(entries, entry.like) if entry.like else {}
    return {**base, **entry.config}


@cache
def _names() -> dict[str, str]:
    """Full names by every spelling."""
    names: dict[str, str] = {}
    for name, entry in _table().items():
        for word in (name, name.rpartition("/")[2], *entry.aliases):
            names.setdefault(_key(word), name)
            names.setdefault(_key(word.rpartition("/")[2]), name)
    return names


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", name.lower())


def _from_cache(name: str) -> dict[str, Any] | None:
    """`config.json` of the newest snapshot in the cache of huggingface_hub, if it is there."""
    if not _REPOSITORY.fullmatch(name) or ".." in name:
        return None
    folder = _cache_folder() / ("models--" + name.replace("/", "--")) / "snapshots"
    try:
        files = sorted(folder.glob("*/config.json"), key=lambda path: path.stat().st_mtime)
        if not files or files[-1].stat().st_size > _MOST_BYTES:
            return None
        config = json.loads(files[-1].read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) and "model_type" in config else None


def _cache_folder() -> Path:
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if place := os.environ.get(variable):
            return Path(place)
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    return Path(home).expanduser() / "hub"
