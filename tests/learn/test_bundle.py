"""A bundle comes back as it was; a file that is none is one clear line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from presage.learn import bundle
from presage.learn.bundle import load_bundle, prefixed, save_bundle, under
from presage.model.errors import BundleError

CARD: dict[str, Any] = {
    "name": "sample",
    "version": "1",
    "date": "2026-01-31",
    "data": "drawn in this test",
    "licence": "Apache-2.0",
    "features": ["a"],
    "splits": "none",
    "errors": {"rmsle": 0.1},
}
ARRAYS = {"weights": np.arange(1000.0), "names": np.array(["x", "y"])}


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "sample.npz"
    save_bundle(path, ARRAYS, CARD)
    arrays, card = load_bundle(path)
    assert card.pop("digest")
    assert card == {**CARD, "format": bundle.FORMAT}
    assert arrays.keys() == ARRAYS.keys()
    assert np.array_equal(arrays["weights"], ARRAYS["weights"])
    assert [entry.name for entry in tmp_path.iterdir()] == ["sample.npz"]


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one.npz", "two.npz"):
        save_bundle(tmp_path / name, ARRAYS, CARD)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sample.npz"
    save_bundle(path, ARRAYS, CARD)
    before = path.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(BundleError, match="No space left"):
        save_bundle(path, ARRAYS, CARD)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_any_damaged_byte_is_noticed_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "sample.npz"
    save_bundle(path, ARRAYS, CARD)
    whole = path.read_bytes()
    noticed = 0
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            load_bundle(path)
        except BundleError:
            noticed += 1
    assert noticed > len(range(0, len(whole), 7)) / 2
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(BundleError, match="damaged"):
            load_bundle(path)


def test_files_that_are_no_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sample.npz"
    with pytest.raises(BundleError, match="there is no bundle"):
        load_bundle(path)
    with pytest.raises(BundleError, match="cannot be read"):
        load_bundle(tmp_path)
    np.savez(path, weights=np.zeros(3))
    with pytest.raises(BundleError, match="has no card"):
        load_bundle(path)
    np.savez(path, card=np.frombuffer(b"[1]", dtype=np.uint8))
    with pytest.raises(BundleError, match="incomplete"):
        load_bundle(path)
    np.savez(path, card=np.array([{"runs": "code"}], dtype=object))
    with pytest.raises(BundleError, match="damaged"):
        load_bundle(path)
    save_bundle(path, ARRAYS, CARD)
    monkeypatch.setattr(bundle, "FORMAT", 3)
    with pytest.raises(BundleError, match="has format 2; this program reads format 3"):
        load_bundle(path)
    monkeypatch.setattr(bundle, "_MOST_BYTES", 100)
    with pytest.raises(BundleError, match="unpacks to more than"):
        load_bundle(path)


def test_numbers_that_were_changed_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "sample.npz"
    save_bundle(path, ARRAYS, CARD)
    with np.load(path, allow_pickle=False) as file:
        inside = {name: file[name] for name in file.files}
    inside["weights"] = inside["weights"] + 1
    np.savez(path, **inside)
    with pytest.raises(BundleError, match="was changed after it was written"):
        load_bundle(path)


def test_what_may_not_be_saved(tmp_path: Path) -> None:
    path = tmp_path / "sample.npz"
    with pytest.raises(BundleError, match="lacks: name, version"):
        save_bundle(path, ARRAYS, {})
    with pytest.raises(BundleError, match="may be named 'card'"):
        save_bundle(path, {"card": np.zeros(1)}, CARD)
    with pytest.raises(BundleError, match="holds Python objects"):
        save_bundle(path, {"x": np.array([{}], dtype=object)}, CARD)
    with pytest.raises(BundleError, match="cannot be written"):
        save_bundle(tmp_path / "nowhere" / "sample.npz", ARRAYS, CARD)
    assert not list(tmp_path.iterdir())


def test_parts_of_a_bundle() -> None:
    parts = prefixed("a", {"x": np.zeros(1)}) | prefixed("ab", {"x": np.ones(1)})
    assert under("a", parts) == {"x": np.zeros(1)}
    assert under("ab", parts) == {"x": np.ones(1)}
