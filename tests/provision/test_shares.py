"""Right-sizing of enforced shares of GPUs: what becomes of the limit of a job's workers."""

from __future__ import annotations

from presage.provision.live import SizingRules
from presage.provision.shares import NewShareLimit, ShareSizer, ShareUse, new_limit

RULES = SizingRules(share_patience=5)
REQUEST, MOST = 300, 800


def used(*got: float, waited: float = 0.0, held: int = MOST) -> list[ShareUse]:
    return [ShareUse(float(at), part, waited, held) for at, part in enumerate(got)]


def limit(*workers: list[ShareUse], given: int = MOST) -> int | None:
    found = new_limit(workers, given, REQUEST, MOST, RULES)
    return None if found is None else found.milli


def test_a_limit_goes_down_to_what_was_used_at_most_with_a_margin() -> None:
    found = new_limit([used(0.2, 0.42, 0.3, 0.3, 0.3)], MOST, REQUEST, MOST, RULES)
    assert found is not None
    assert found.milli == 500  # 0.42 and 15 %, in steps of 0.05
    assert found.why == "it used at most 0.42 of a GPU and did not wait: limit 0.5"


def test_it_takes_patience_and_a_reduction_that_is_worth_it() -> None:
    assert limit(used(0.3, 0.3, 0.3, 0.3)) is None
    assert limit(used(*[0.65] * 5)) is None  # 0.75 instead of 0.8
    assert limit(used(*[0.3] * 5), used(0.3)) is None  # the other has just begun


def test_the_worker_that_needs_most_counts() -> None:
    assert limit(used(*[0.3] * 5), used(*[0.5] * 5)) == 600


def test_it_is_never_below_the_request() -> None:
    assert limit(used(*[0.01] * 5)) == REQUEST
    assert limit(used(*[0.0] * 5, held=REQUEST), given=REQUEST) is None


def test_who_waits_keeps_its_limit() -> None:
    assert limit([*used(0.4, 0.4, 0.4, 0.4), ShareUse(4.0, 0.4, 0.1, MOST)]) is None
    assert limit(used(*[0.4] * 5, waited=0.09)) == 500


def test_who_meets_its_limit_has_all_it_asked_for_again_at_once() -> None:
    assert limit(used(0.38, held=400), given=400) == MOST
    assert limit(used(0.37, held=400), given=400) is None
    assert limit(used(0.33, waited=0.2, held=400), given=400) == MOST  # near it, and waits
    assert limit(used(0.30, waited=0.2, held=400), given=400) is None  # for its neighbours
    assert limit(used(*[0.8] * 9)) is None  # it has all of it


def see(
    sizer: ShareSizer, worker: str, at: int, got: float, held: int, given: int
) -> NewShareLimit | None:
    return sizer.see(worker, ShareUse(float(at), got, 0.0, held), given)


def test_samples_under_another_limit_do_not_count() -> None:
    sizer = ShareSizer(REQUEST, MOST, RULES)
    for at in range(4):
        assert see(sizer, "a", at, 0.3, MOST, MOST) is None
    # Somebody holds this one share to less: neither met nor too much.
    assert see(sizer, "a", 4, 0.3, 300, MOST) is None
    for at in range(5, 9):
        assert see(sizer, "a", at, 0.3, MOST, MOST) is None
    found = see(sizer, "a", 9, 0.3, MOST, MOST)
    assert found is not None
    assert found.milli == 350
    assert see(sizer, "a", 10, 0.4, MOST, 350) is None  # the new limit is on its way
    back = see(sizer, "a", 11, 0.35, 350, 350)
    assert back is not None
    assert back.milli == MOST


def test_a_worker_that_was_not_measured_holds_up_and_one_that_is_gone_does_not() -> None:
    sizer = ShareSizer(REQUEST, MOST, RULES)
    for at in range(9):
        assert see(sizer, "gone", at, 0.3, 0, MOST) is None
        assert see(sizer, "a", at, 0.3, MOST, MOST) is None
    found = [see(sizer, "a", at, 0.3, MOST, MOST) for at in range(9, 14)]
    assert [one and one.milli for one in found] == [None] * 4 + [350]
