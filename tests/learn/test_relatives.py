"""Relatives: rows that are alike in numbers and in name tell of one another."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from presage.learn.relatives import Relatives, pieces
from presage.model.errors import UserError

Floats = npt.NDArray[np.float64]
Names = npt.NDArray[np.str_]

FAMILIES = ("resnet", "seresnet", "vit", "deit")
KIN = {"resnet": 0.0, "seresnet": 0.0, "vit": 1.0, "deit": 1.0, "ecaresnet": 0.0, "davit": 1.0}


def rows(
    count: int, seed: int = 0, families: tuple[str, ...] = FAMILIES
) -> tuple[Floats, Floats, Names, Floats]:
    """Numbers, setting, names, and a target to which number, setting and kin add something."""
    random = np.random.default_rng(seed)
    numbers = random.normal(5, 2, (count, 2))
    setting = random.integers(0, 2, count).astype(float)
    of = random.choice(families, count)
    names = np.array([f"{family}_{n}" for n, family in enumerate(of)])
    target = 0.2 * numbers[:, 0] + 0.3 * setting + np.array([KIN[family] for family in of])
    return numbers, setting, names, target


def fitted(numbers: Floats, setting: Floats, names: Names, target: Floats) -> Relatives:
    families = np.array([name.split("_")[0] for name in names])
    return Relatives.fit(numbers, setting, names, target, families, (1.0, 1.0))


@pytest.fixture(scope="module")
def known() -> Relatives:
    return fitted(*rows(200))


def test_rows_that_were_fitted_are_remembered(known: Relatives) -> None:
    numbers, setting, names, target = rows(200)
    assert np.abs(known.predict(numbers, setting, names) - target).mean() < 0.05


@pytest.mark.parametrize("family", ["ecaresnet", "davit"])
def test_a_new_family_is_like_its_namesakes(known: Relatives, family: str) -> None:
    numbers, setting, names, target = rows(100, 1, (family,))
    assert np.abs(known.predict(numbers, setting, names) - target).mean() < 0.2
    nameless = known.predict(numbers, setting, np.full(100, ""))
    assert np.abs(nameless - target).mean() > 0.25


def test_numbers_beyond_the_fitted_ones_count_as_the_last(known: Relatives) -> None:
    last = known.numbers.max(axis=0) * known.scale[1] + known.scale[0]
    there, beyond = (
        known.predict(numbers[None], np.zeros(1), np.array(["vit_1"]))
        for numbers in (last, last + 1000)
    )
    assert there == pytest.approx(beyond)


def test_the_setting_matters(known: Relatives) -> None:
    numbers, _, names, _ = rows(100, 2)
    low, high = (known.predict(numbers, np.full(100, s), names) for s in (0.0, 1.0))
    assert 0.2 < np.median(high - low) < 0.4


def test_what_nothing_explains_bends_little() -> None:
    numbers, setting, names, target = rows(200)
    wrong = target.copy()
    wrong[::20] += 3.0
    found = fitted(numbers, setting, names, wrong).predict(numbers, setting, names)
    kept = np.arange(200) % 20 != 0
    assert np.abs(found - target)[kept].mean() < 0.1
    assert np.abs(found - target)[~kept].mean() < 1.5


def test_blocks_do_not_matter(known: Relatives) -> None:
    numbers, setting, names, _ = rows(1200, 3)
    whole = known.predict(numbers, setting, names)
    parts = [
        known.predict(numbers[i : i + 7], setting[i : i + 7], names[i : i + 7])
        for i in range(0, 1200, 7)
    ]
    assert whole == pytest.approx(np.concatenate(parts))


def test_pieces_of_a_name() -> None:
    assert pieces("vit_48") == pieces("ViT_7") >= {"^vi", "vit", "it_0", "t_0$"}
    assert pieces("") == set()


def test_pieces_of_one_family_alone_are_not_kept(known: Relatives) -> None:
    kept = set(known.vocabulary.tolist())
    assert "resne" in kept
    assert "seres" not in kept
    assert known.rarity.min() >= 0


def test_arrays_bring_it_back(known: Relatives) -> None:
    numbers, setting, names, _ = rows(50, 4)
    again = Relatives.from_arrays(known.to_arrays())
    assert np.array_equal(
        again.predict(numbers, setting, names), known.predict(numbers, setting, names)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": None}, "weights"),
        ({"weights": np.zeros(3)}, "contradict"),
        ({"numbers": np.zeros(3)}, "contradict"),
        ({"scale": np.zeros((2, 2))}, "contradict"),
        ({"rarity": np.zeros(1)}, "contradict"),
    ],
)
def test_arrays_that_cannot_be_are_refused(
    known: Relatives, change: dict[str, Any], message: str
) -> None:
    arrays = {k: v for k, v in (known.to_arrays() | change).items() if v is not None}
    with pytest.raises(UserError, match=f"no relatives.*{message}"):
        Relatives.from_arrays(arrays)
