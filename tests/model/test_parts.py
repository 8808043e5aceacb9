"""How time is divided where shares of a GPU are enforced: the arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.model.parts import divided, held_slowdowns

PART = st.floats(0.01, 1.0)


def test_each_gets_its_request_and_of_the_rest_by_weight() -> None:
    assert divided([0.2, 0.4], [1.0, 1.0], [1.0, 3.0]) == pytest.approx([0.3, 0.7])
    assert divided([0.2, 0.4], [0.25, 1.0], [1.0, 1.0]) == pytest.approx([0.25, 0.75])
    assert divided([0.8, 0.8], [1.0, 1.0], [1.0, 1.0]) == pytest.approx([0.5, 0.5])
    assert divided([0.1, 0.1], [0.2, 0.2], [1.0, 1.0]) == pytest.approx([0.2, 0.2])


@given(st.lists(st.tuples(PART, PART, st.floats(0.1, 9.0)), min_size=1, max_size=4), PART)
def test_nobody_gets_more_than_there_is_or_than_it_may(
    each: list[tuple[float, float, float]], there: float
) -> None:
    most = [max(a, b) for a, b, _ in each]
    requests = [min(a, b) for a, b, _ in each]
    got = divided(requests, most, [weight for _, _, weight in each], there)
    scale = max(1.0, sum(requests))
    for part, request, limit in zip(got, requests, most, strict=True):
        assert request / scale - 1e-6 <= part <= limit + 1e-6
    assert sum(got) <= max(there, sum(requests) / scale) + 1e-6
    assert sum(got) >= min(there, sum(most)) - 1e-6  # nothing is left to nobody


def test_a_request_holds_however_bad_the_neighbour_is() -> None:
    free = [9.0, 1.0]
    calm, rude = held_slowdowns([0.6, 1.0], [0.4, 0.1], [1.0, 1.0], free, 0.0)
    assert calm <= 1.5 + 1e-9
    assert rude > 1.5
    assert held_slowdowns([0.3, 0.3], [0.2, 0.2], [1.0, 1.0], [1.0, 1.0], 0.05) == [1.0, 1.0]


def test_turns_cost_what_they_cost_and_a_limit_holds() -> None:
    both = held_slowdowns([1.0, 1.0], [0.5, 0.5], [1.0, 1.0], [2.0, 2.0], 0.05)
    assert both == pytest.approx([2 / 0.95] * 2)
    limited, other = held_slowdowns([1.0, 0.5], [0.1, 0.5], [0.25, 1.0], [1.5, 1.5], 0.0)
    assert limited == pytest.approx(4.0)
    assert other == pytest.approx(1.0)
