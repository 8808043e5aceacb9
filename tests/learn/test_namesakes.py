"""What is left of rows of a name: learned, shrunk, kept."""

from __future__ import annotations

import numpy as np
import pytest

from presage.learn.namesakes import Namesakes
from presage.model.errors import UserError

NAMES = np.array(["a", "a", "a", "b", "b", "c"])
SETTING = np.array([0.0, 0.0, 1.0, 0.0, 1.0, 2.0])
LEFT = np.array([0.4, 0.4, 0.4, 0.2, -0.2, 1.0])


def test_a_name_is_off_as_it_was() -> None:
    known = Namesakes.fit(NAMES, SETTING, LEFT)
    effect = known.predict(np.array(["a", "b", "b", "c"]), np.array([3.0, 0.0, 1.0, 2.0]))
    assert effect[0] == pytest.approx(1.2 / 4)  # a setting that it was not seen in
    assert effect[1] == pytest.approx(0.2 / 2)
    assert effect[2] == pytest.approx(-0.2 / 2)
    assert effect[3] == pytest.approx(0.5 + 0.5 / 2)  # one row is half believed, twice


def test_of_a_new_name_nothing_is_known() -> None:
    known = Namesakes.fit(NAMES, SETTING, LEFT)
    new = np.array(["a2", "", "z"])
    assert known.predict(new, np.zeros(3)).tolist() == [0.0, 0.0, 0.0]
    assert known.knows(np.array(["a", "z"])).tolist() == [True, False]


def test_it_is_kept_as_arrays() -> None:
    known = Namesakes.fit(NAMES, SETTING, LEFT)
    again = Namesakes.from_arrays(known.to_arrays())
    assert again.predict(NAMES, SETTING).tolist() == known.predict(NAMES, SETTING).tolist()
    with pytest.raises(UserError, match="holds no namesakes"):
        Namesakes.from_arrays({"names": NAMES})
    with pytest.raises(UserError, match="do not match"):
        Namesakes.from_arrays(known.to_arrays() | {"effects": np.zeros(1)})
