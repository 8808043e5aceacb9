"""The CRBM: the published code's numbers in compat mode, a correct and seeded fit otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from presage.model.errors import BundleError, NotFitted, TelemetryError
from presage.observe.phases.crbm import CRBM, Weights


def some_windows(n: int) -> np.ndarray:
    """Windows of a slowly moving series of four features that depend on two hidden ones."""
    random = np.random.default_rng(0)
    hidden = np.cumsum(random.normal(0, 0.1, (n + 3, 2)), axis=0) % 2 - 1
    rows = hidden @ random.normal(0, 1, (2, 4)) + random.normal(0, 0.05, (n + 3, 4))
    return np.lib.stride_tricks.sliding_window_view(rows, 4, axis=0).transpose(0, 2, 1).copy()


def test_training_in_compat_mode_ends_where_the_published_code_ends(shared_data: Path) -> None:
    with np.load(shared_data / "peers/ai4dl/train_from_scratch_noshuffle.npz") as file:
        known = {name: file[name] for name in file.files}
    start = Weights.drawn(8, 10, 3, seed=1234, published=True)
    for name in ("W", "A", "B"):
        np.testing.assert_allclose(getattr(start, name), known[f"{name}0"], atol=1e-8)
    epochs = len(known["rec_error_per_epoch"])
    machine = CRBM(10, learning_rate=0.001, epochs=epochs, seed=1234, compat="hiest")
    machine.fit(known["slices"])
    for name, found in machine.to_arrays().items():
        np.testing.assert_allclose(found, known[name].reshape(found.shape), atol=1e-6)


def test_mini_batches_reconstruct_at_least_as_well_as_one_slice_at_a_time() -> None:
    windows, unseen = np.split(some_windows(3500), [3000])
    slow = CRBM(6, learning_rate=0.001, epochs=3, compat="hiest").fit(windows)
    fast = CRBM(6, epochs=3).fit(windows)
    assert fast.surprise(unseen).mean() < slow.surprise(unseen).mean()
    done = CRBM(6).fit(windows)
    assert done.surprise(unseen).mean() < unseen[:, -1].var(axis=0).mean() / 10


def test_a_fit_is_seeded_and_more_steps_of_divergence_change_it() -> None:
    windows = some_windows(400)
    first, again = (CRBM(4, epochs=2, seed=7).fit(windows).encode(windows) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    other = CRBM(4, epochs=2, seed=8).fit(windows).encode(windows)
    deeper = CRBM(4, epochs=2, seed=7, cd_steps=3).fit(windows).encode(windows)
    assert np.abs(first - other).max() > 1e-3
    assert np.abs(first - deeper).max() > 1e-5
    assert ((first > 0) & (first < 1)).all()


def test_training_stops_early_and_keeps_the_best_weights() -> None:
    machine = CRBM(4, epochs=200, patience=2, seed=0).fit(some_windows(400))
    assert 3 <= len(machine.errors_) < 200
    assert len(machine.errors_) - 1 - int(np.argmin(machine.errors_)) <= 2


def test_windows_encode_the_same_alone_and_together() -> None:
    windows = some_windows(200)
    machine = CRBM(4, epochs=1).fit(windows)
    together = machine.encode(windows)
    alone = np.concatenate([machine.encode(windows[at : at + 1]) for at in range(200)])
    np.testing.assert_allclose(alone, together, rtol=0, atol=1e-13)


def test_what_cannot_be_learned_from_is_refused() -> None:
    with pytest.raises(TelemetryError, match="too few"):
        CRBM().fit(some_windows(5))
    broken = some_windows(50)
    broken[3, 0, 0] = np.nan
    with pytest.raises(TelemetryError, match="finite"):
        CRBM().fit(broken)
    with pytest.raises(NotFitted):
        CRBM().encode(some_windows(5))
    with pytest.raises(TelemetryError, match="compat"):
        CRBM(4, epochs=1).fit(some_windows(50)).activations(np.zeros((9, 4)))


@pytest.mark.parametrize("name", ["W", "A", "h_bias"])
def test_weights_that_contradict_each_other_are_refused(name: str) -> None:
    arrays = Weights.drawn(4, 3, 2, 0).to_arrays()
    assert Weights.from_arrays(arrays).history == 2
    with pytest.raises(BundleError, match="contradict"):
        Weights.from_arrays({**arrays, name: arrays[name][:-1]})
    with pytest.raises(BundleError, match="finite"):
        Weights.from_arrays({**arrays, name: np.full_like(arrays[name], np.nan)})
    with pytest.raises(BundleError, match="lack"):
        Weights.from_arrays({key: part for key, part in arrays.items() if key != name})
