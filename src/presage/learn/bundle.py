"""A fitted estimator on disk: one .npz file with its arrays and a card that says what it is.

The file is plain arrays and JSON: loading it runs no code. It is written whole or not at all, and
checked when it is read, for it may come from anywhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.model.errors import BundleError

__all__ = ["FORMAT", "load_bundle", "prefixed", "save_bundle", "under"]

FORMAT = 2
"""The version of the file's layout; a reader refuses one that it does not know."""

_CARD = "card"
_MOST_BYTES = 256 << 20
_KEYS = ("name", "version", "date", "data", "licence", "features", "splits", "errors")

Arrays = dict[str, npt.NDArray[Any]]


def save_bundle(
    path: Path, arrays: Mapping[str, npt.NDArray[Any]], card: Mapping[str, Any]
) -> None:
    """Write the arrays and the card; `format` and a digest of the arrays are added to the card.

    The card tells at least name, version, date, data, licence, features, splits and errors.
    """
    if lacking := [key for key in _KEYS if key not in card]:
        raise BundleError(f"the card of {path} lacks: {', '.join(lacking)}")
    if _CARD in arrays:
        raise BundleError(f"no array of {path} may be named '{_CARD}'")
    if objects := [name for name, array in arrays.items() if np.asarray(array).dtype.hasobject]:
        raise BundleError(f"{path}: array '{objects[0]}' holds Python objects; store numbers")
    seal = {"format": FORMAT, "digest": _digest(arrays)}
    text = json.dumps({**card, **seal}, allow_nan=False, sort_keys=True)
    inside: Arrays = {_CARD: np.frombuffer(text.encode(), dtype=np.uint8)}
    inside |= {name: np.asarray(array) for name, array in arrays.items()}
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with draft.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **inside)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as wrong:
        raise BundleError(f"{path} cannot be written: {wrong.strerror}") from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def load_bundle(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """The arrays and the card of a bundle; anything wrong with the file is a `BundleError`."""
    try:
        with zipfile.ZipFile(path) as packed:
            if sum(entry.file_size for entry in packed.infolist()) > _MOST_BYTES:
                raise BundleError(f"{path} unpacks to more than {_MOST_BYTES >> 20} MiB")
        with np.load(path, allow_pickle=False) as file:
            arrays: Arrays = {name: file[name] for name in file.files}
        card = json.loads(arrays.pop(_CARD).tobytes().decode())
    except FileNotFoundError:
        raise BundleError(f"there is no bundle {path}; fit one first") from None
    except KeyError:
        raise BundleError(f"{path} is no bundle of Presage: it has no card") from None
    except OSError as wrong:
        raise BundleError(f"{path} cannot be read: {wrong.strerror or wrong}") from None
    except BundleError:
        raise
    except Exception:  # NumPy lets a damaged header out as whatever its parser stumbled over
        raise BundleError(f"{path} is damaged or is no bundle; fit or fetch it again") from None
    if not isinstance(card, dict) or any(key not in card for key in _KEYS):
        raise BundleError(f"{path} is no bundle of Presage: its card is incomplete")
    if card.get("format") != FORMAT:
        raise BundleError(
            f"{path} has format {card.get('format')}; this program reads format {FORMAT}"
        )
    if card.get("digest") != _digest(arrays):
        raise BundleError(f"{path} was changed after it was written; fit or fetch it again")
    return arrays, card


def _digest(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """SHA-256 over the names, types, shapes and numbers."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {arrays[name].shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def prefixed(prefix: str, arrays: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """The arrays of one part, named so that several parts fit into one bundle."""
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


def under(prefix: str, arrays: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """The other way round: the arrays of one part, under the names it gave them."""
    start = f"{prefix}."
    return {
        name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)
    }
