"""What a job says of links, by a label that not only manifests can set."""

from __future__ import annotations

import pytest

from presage.model.job import JobSpec
from presage.model.links import LINK_SHARE, said_link_share


@pytest.mark.parametrize(
    ("said", "share"),
    [("0.25", 0.25), ("0", 0.0), ("much", None), ("1", None), ("-0.1", None), ("nan", None)],
)
def test_only_a_share_says_something(said: str, share: float | None) -> None:
    assert said_link_share(JobSpec("a", (), labels={LINK_SHARE: said})) == share


def test_nobody_said_it() -> None:
    assert said_link_share(JobSpec("a", ())) is None
    assert said_link_share(JobSpec("a", (), labels={"team": "x"})) is None
