"""The chance that a job fails, from jobs that ended here: history by time, champions, words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from presage.control.advisors.failing import MOMENTS, Failing, first_minute
from presage.control.advisors.learning import Ended
from presage.control.measured import StoredTelemetry
from presage.layout import Layout
from presage.model.cluster import Resources
from presage.model.job import JobSpec, Role
from presage.store.memory import MemoryKnowledge
from presage.telemetry.rows import Row, append

BEGAN = 1.7e9


class Ends:
    """Jobs that ended, in order."""

    def __init__(self, listed: Sequence[Ended] = ()) -> None:
        self.listed = list(listed)

    def after(self, number: int) -> tuple[Sequence[Ended], int]:
        return self.listed[number : number + 50], min(number + 50, len(self.listed))


def spec(name: str, owner: str, gpus: int, command: str = "train") -> JobSpec:
    ask = Resources(cpu_milli=1000, gpu_milli=1000 * gpus)
    return JobSpec(name, (Role(resources=ask),), owner, entrypoint=(command,))


def ended(number: int, owner: str, gpus: int, status: str, ran_s: float = 100.0) -> Ended:
    at = BEGAN + 600.0 * number
    job = spec(f"j{number}", owner, gpus)
    well = status == "COMPLETED"
    about = {"submitted_at": at, "started_at": at + 5, "status": status}
    return Ended(job, at + ran_s, well, **about)  # type: ignore[arg-type]


def jobs(count: int) -> Iterator[Ended]:
    """What ann runs on many GPUs fails, nearly all else is well."""
    random = np.random.default_rng(0)
    for number in range(count):
        owner, gpus = random.choice(["ann", "bob"]), int(random.choice([1, 2, 8]))
        bad = random.random() < (0.9 if (owner, gpus) == ("ann", 8) else 0.03)
        status = "CANCELLED" if number % 15 == 7 else "FAILED" if bad else "COMPLETED"
        yield ended(number, str(owner), gpus, status)


def learner(home: Path, ends: Ends, knowledge: MemoryKnowledge | None = None) -> Failing:
    telemetry = StoredTelemetry(Layout(home))
    one = Failing(ends, knowledge or MemoryKnowledge(), telemetry)
    one.look(BEGAN + 1e6, lambda question: None, telemetry)  # type: ignore[arg-type]
    return one


def test_a_new_cluster_says_nothing_and_then_how_often_like_jobs_failed(tmp_path: Path) -> None:
    few = [ended(k, "ann", 1, "COMPLETED") for k in range(5)]
    assert learner(tmp_path, Ends(few)).forecast(spec("n", "ann", 1), BEGAN + 1e6) is None
    more = [ended(k, "ann", 1, "FAILED" if k % 2 else "COMPLETED") for k in range(20)]
    found = learner(tmp_path, Ends(more)).forecast(spec("n", "ann", 1), BEGAN + 1e6)
    assert found is not None
    assert (found.version, found.moment) == (0, "submission")
    assert found.low < 0.5 < found.high
    assert "of its owner's runs like it failed" in found.text
    # Ends that come after its submission say nothing: five had ended then.
    assert learner(tmp_path, Ends(more)).forecast(spec("n", "ann", 1), BEGAN + 2500) is None


def test_a_model_answers_when_it_is_better_and_the_next_server_has_it(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    knowledge = MemoryKnowledge()
    one = learner(tmp_path, Ends(list(jobs(200))), knowledge)
    standing = one.standing("submission")
    (version,) = standing.versions
    assert version.accepted
    assert standing.champion == 1
    assert version.champion_error is not None
    assert version.error is not None
    assert version.error < 0.98 * version.champion_error
    assert one.standing("first_minute").versions == ()  # nothing was measured
    now = BEGAN + 1e6
    bad = one.forecast(spec("n", "ann", 8), now)
    good = one.forecast(spec("n", "bob", 1), now)
    assert bad is not None
    assert good is not None
    assert bad.chance > 0.6 > 0.2 > good.chance
    assert bad.version == 1
    assert bad.reasons
    assert "gpus: 8" in bad.text or "runs like it failed" in bad.text
    following = learner(tmp_path, Ends(list(jobs(200))), knowledge)
    assert following.forecast(spec("n", "ann", 8), now) == bad
    assert len(following.standing("submission").versions) == 1  # nothing new to learn from


def test_a_model_that_is_no_better_does_not_answer(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    random = np.random.default_rng(3)
    coins = [
        ended(k, "ann", 1, "FAILED" if random.random() < 0.5 else "COMPLETED") for k in range(200)
    ]
    standing = learner(tmp_path, Ends(coins)).standing("submission")
    assert [version.accepted for version in standing.versions] == [False]
    assert standing.champion == 0


def test_the_first_minute_is_learned_from(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    random = np.random.default_rng(1)
    layout, listed = Layout(tmp_path), []
    for k in range(160):
        bad = bool(random.random() < 0.4)
        end = ended(k, "ann", 1, "FAILED" if bad else "COMPLETED", ran_s=300.0)
        listed.append(end)
        write(layout, end.spec.id, end.started_at or 0.0, 0.1 if bad else 0.9)
    one = learner(tmp_path, Ends(listed))
    assert one.standing("first_minute").champion == 1
    now = BEGAN + 1e6
    write(layout, "new", now, 0.1)
    young = one.forecast(spec("new", "ann", 1), now - 9, now, now + 30)
    assert young is not None
    assert young.moment == "submission"
    later = one.forecast(spec("new", "ann", 1), now - 9, now, now + 90)
    assert later is not None
    assert later.moment == "first_minute"
    assert later.chance > 0.7
    assert "by its first minute" in later.text
    assert {one.standing(moment).pinned for moment in MOMENTS} == {False}


def write(layout: Layout, job: str, started: float, cores: float) -> None:
    """Five minutes; what comes after the first one says the contrary."""
    for k in range(10):
        used = cores if k <= 2 else 1 - cores
        append(layout.telemetry(job, 1), Row(started + 30 * k, "worker-0", None, used, 100.0))


def test_only_the_first_minute_of_this_start_counts() -> None:
    rows = [Row(at, "worker-0", None, at, None) for at in (0.0, 50.0, 100.0, 130.0, 170.0)]
    assert first_minute(rows, 90.0) == {"cpu_cores": 115.0}
    assert first_minute([], 90.0) == {}
