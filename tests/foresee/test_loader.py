"""A user's input pipeline: timed as it is, with what it may do wrong, and a step behind it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from presage.foresee.loader import LoaderTiming, _timing, fed, time_loader
from presage.model.errors import UserError
from presage.telemetry.batches import TimedBatch, samples_in, time_batches
from tests.waiting import PATIENCE_S


class _Array:
    def __init__(self, *shape: int) -> None:
        self.shape = shape


def written(folder: Path, body: str) -> str:
    path = folder / "feeding.py"
    path.write_text(body)
    return f"{path}:make_loader"


def timing(rate: float, prefetches: bool = True) -> LoaderTiming:
    return LoaderTiming(rate * 0.9, rate, rate * 1.1, 32, 40, 2 if prefetches else 0, prefetches)


def test_a_loader_is_timed_as_it_is(tmp_path: Path) -> None:
    body = """
import time

def make_loader():
    def batches():
        for _ in range(50):
            time.sleep(0.01)
            yield [[0.0] * 4] * 16
    return batches()
"""
    told = time_loader(written(tmp_path, body), batches=8, timeout_s=PATIENCE_S)
    assert told.batch == 16
    assert told.batches >= 7
    assert not told.prefetches
    assert told.p10 <= told.p50 <= told.p90
    assert told.p50 <= 1600.0  # no faster than its loop; how much slower is the machine's affair


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def make_loader(): return 7", "it must return something to iterate over"),
        ("def other(): return []", "has no function 'make_loader'"),
        ("def make_loader(): return []", "handed out 0 batches"),
        ("def make_loader(): return [3.5, 3.5, 3.5]", "a batch is a float without a size"),
        ("def make_loader(): raise ValueError('no such folder')", "no such folder"),
        ("def make_loader():\n    while True: pass", "took longer than 2 s"),
    ],
)
def test_what_a_loader_may_do_wrong_is_one_line(tmp_path: Path, body: str, said: str) -> None:
    patience_s = 2 if "while" in body else PATIENCE_S
    with pytest.raises(UserError, match=said) as told:
        time_loader(written(tmp_path, body), batches=4, timeout_s=patience_s)
    assert "\n" not in str(told.value)


def test_a_target_that_is_none() -> None:
    with pytest.raises(UserError, match=r"write file\.py:make_loader"):
        time_loader("feeding.py")
    with pytest.raises(UserError, match="does not exist"):
        time_loader("nowhere.py:make_loader")
    with pytest.raises(UserError, match="tell nothing"):
        time_loader("nowhere:make_loader", batches=1)


def test_samples_of_any_batch() -> None:
    image = _Array(8, 3, 4, 4)
    assert samples_in(image) == 8
    assert samples_in((image, _Array(8))) == 8
    assert samples_in({"input_ids": _Array(6, 128), "labels": _Array(6)}) == 6
    assert samples_in([image, _Array(8)]) == 8
    assert samples_in(([image] * 5, [{}] * 5)) == 5
    assert samples_in([{"image": image}] * 4) == 4
    assert samples_in(["a", "b", "c"]) == 3


def test_a_short_loader_is_gone_through_again_and_an_iterator_is_not() -> None:
    again = time_batches([[0, 0], [0, 0]], 5, 10.0)
    assert [batch.samples for batch in again] == [2] * 5
    assert len(time_batches(iter([[0, 0], [0, 0]]), 5, 10.0)) == 2


def test_waiting_for_cores_that_others_have_is_not_the_pipelines() -> None:
    alone = [TimedBatch(0.1, 10, 0.0, 0.1)] * 12
    beside = [TimedBatch(0.3, 10, 0.2, 0.1)] * 12
    told = {"workers": 0, "skipped": 1, "cores": 2}
    quiet, busy = (_timing("x", {**told, "taken": taken}) for taken in (alone, beside))
    assert busy.p50 == pytest.approx(quiet.p50)
    assert busy.p10 == pytest.approx(10 / 0.3)  # a training may run beside others as well
    assert busy.waited == pytest.approx(2 / 3)
    assert quiet.waited == 0


def test_workers_that_wait_for_each_other_do_not_get_faster() -> None:
    crowded = [TimedBatch(0.2, 10, 0.15, 0.4)] * 12  # four workers on two cores
    told = _timing("x", {"taken": crowded, "workers": 4, "skipped": 1, "cores": 2})
    assert told.p50 == pytest.approx(50.0)


def test_workers_hand_out_bursts_and_the_first_batches_do_not_count() -> None:
    bursts = [(5.0, 10, 0.0, 0.0), (0.0, 10, 0.0, 0.0)]
    bursts += [(0.2, 10, 0.0, 0.0), (0.0, 10, 0.0, 0.0)] * 10
    told = _timing("x", {"taken": bursts, "workers": 2, "skipped": 2, "cores": 4})
    assert told.prefetches
    assert told.p50 == pytest.approx(100.0)
    assert told.p10 == pytest.approx(100.0, rel=0.06)


def test_the_slower_of_the_two_where_batches_are_prepared_ahead() -> None:
    starved = fed((9, 10, 11), (80, 90, 95), timing(1000), 32)
    assert starved.step_ms[1] == pytest.approx(32.0, rel=0.01)
    assert starved.util_pct[1] == pytest.approx(90 * 10 / 32, rel=0.01)
    assert starved.starved == 1.0
    assert "waits for samples" in starved.reason
    full = fed((90, 100, 110), (80, 90, 95), timing(1000), 32)
    assert full.step_ms[1] == pytest.approx(100, rel=0.01)
    assert full.util_pct[1] == pytest.approx(90, rel=0.01)
    assert full.starved == 0.0
    assert full.reason.startswith("is fed")


def test_workers_share_the_cores_with_the_training() -> None:
    # Two workers on two cores make 32 samples in 10 ms alone, and need 20 ms of cores for them.
    alone = LoaderTiming(3000, 3200, 3400, 32, 40, 2, True, core_ms=20 / 32, cores=2)
    slight = fed((0.9, 1, 1.1), (100, 100, 100), alone, 32)
    assert slight.step_ms[1] == pytest.approx(10.5, rel=0.01)
    both = fed((9, 10, 11), (100, 100, 100), alone, 32)
    assert both.step_ms[1] == pytest.approx(15.7, rel=0.01)
    large = fed((90, 100, 110), (100, 100, 100), alone, 32)
    assert large.step_ms[1] == pytest.approx(103, rel=0.01)
    roomy = fed((9, 10, 11), (100, 100, 100), replace(alone, cores=16), 32)
    assert roomy.step_ms[1] == pytest.approx(11.9, rel=0.01)


def test_what_it_takes_to_get_a_batch_is_not_hidden() -> None:
    quick = LoaderTiming(6000, 6400, 6800, 32, 40, 2, True, core_ms=10 / 32, cores=16)
    assert fed((9, 10, 11), (100, 100, 100), quick, 32).step_ms[1] == pytest.approx(10.2, rel=0.01)
    behind = fed((9, 10, 11), (100, 100, 100), replace(quick, take_ms=2 / 32), 32)
    assert behind.step_ms[1] == pytest.approx(12.1, rel=0.01)


def test_a_wait_is_the_less_sure_the_more_share_the_cores() -> None:
    def wide(workers: int, cores: int) -> float:
        told = replace(timing(1000), workers=workers, cores=cores)
        share = fed((10, 10, 10), (100, 100, 100), told, 32)
        return share.util_pct[2] / share.util_pct[0]

    assert wide(1, 64) < wide(1, 2) < wide(3, 2)
    alone = fed((10, 10, 10), (100, 100, 100), timing(1000, prefetches=False), 32)
    assert 1.2 < alone.util_pct[2] / alone.util_pct[0] < wide(1, 2)


def test_threads_of_the_taker_are_told_from_its_workers() -> None:
    alone = time_batches([[0] * 4] * 3, 6, PATIENCE_S)
    assert all(batch.taking_s == batch.computed_s for batch in alone)


def test_both_after_each_other_where_they_are_not() -> None:
    told = fed((9, 10, 11), (100, 100, 100), timing(3200, prefetches=False), 32)
    assert told.step_ms[1] == pytest.approx(20.0)
    assert told.util_pct[1] == pytest.approx(50.0)
    assert told.util_pct[0] < 50 < told.util_pct[2]
    with pytest.raises(UserError, match="p10, p50 and p90"):
        fed((1, 2), (3, 4, 5), timing(10), 1)
